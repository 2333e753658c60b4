"""A task on a cluster emulated by this machine: one set of workers that is probed and then runs plan after plan."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Final

from partita.checkpoints.checkpoint import SavePolicy, advising, stopped_at
from partita.cluster.cluster import Cluster
from partita.cluster.writing import write_cluster
from partita.cost.costs import Costs
from partita.cost.wiring import CURVED
from partita.errors import RunError, RunHung, RunStopped
from partita.files import temporary, write_whole
from partita.graph.graph import Graph
from partita.graph.text import text_of
from partita.lab.failures import STALL_SHARE, stalled
from partita.lab.forward import forwarding
from partita.lab.monitor import Monitor
from partita.lab.profiler import Profiler
from partita.lab.record import scratch
from partita.lab.spares import Spares
from partita.lab.worker_group import WorkerGroup
from partita.lowering.lower import last_program
from partita.plan.plan import Plan
from partita.plan.text import write_plan
from partita.program.absence import chain_of, expendable, returns
from partita.program.held_out import NONE, EvaluationPolicy
from partita.program.space import Kind
from partita.runs.memory_trace import MemoryTrace, read_memory_trace
from partita.runs.reporting import Progress
from partita.runs.result import Halted, RunResult, result_of
from partita.runs.weights import write_first
from partita.runtime.leg import legs
from partita.task import Task, load_task, spec_of
from partita.telling import Tell, quiet
from partita.units import Bytes, Seconds
from partita.zoo.tasks import built_in

TIMEOUT_FACTOR: Final = 100  # times --timeout, for which workers wait alone: a message may take long on a slow link
RETURNS: Final = 3  # times that a worker is started again in a run


class Rehearsal:
    """Workers on every device of `cluster` that have loaded `task`; use as a context manager.

    `task` is a Task that workers can load as well, or the text that they load it by. With `beside`, the kernel kills a
    worker that takes more than its device's memory and so many bytes besides tensors.

    Raises RunError naming rank and step if a worker dies, RunHung if one does not answer in time.
    """

    def __init__(
        self, task: Task | str, graph: Graph, cluster: Cluster, *, seed: int = 0, init: str = "",
        timeout: Seconds = 60.0, tell: Tell = quiet, beside: Bytes | None = None,
    ) -> None:  # fmt: skip
        self.task, self.given, self.graph, self.cluster = spec_of(task), task, graph, cluster
        self.seed, self.init, self.timeout, self.tell, self.note = seed, init, timeout, tell, tell
        self.going = Progress()  # of the plan that runs
        self.runs = 0
        self.monitor: Monitor | None = None
        self.group = WorkerGroup(cluster, listen=True, beside=beside)
        self._stack = ExitStack()

    def __enter__(self) -> Rehearsal:
        with ExitStack() as stack:
            place = stack.enter_context(scratch())
            graph, cluster, first = place / "graph.json", place / "cluster.toml", place / "first.safetensors"
            with temporary(place):
                write_whole(graph, text_of(self.graph))
                write_whole(cluster, write_cluster(self.cluster))
            loaded = self.given if isinstance(self.given, Task) else load_task(self.given, built_in)
            write_first(loaded, self.seed, self.init, first)
            self.tell(f"starting {self.cluster.size} workers on {self.cluster.name}")
            stack.enter_context(self.group)
            self._profiler = Profiler(self.graph, self.cluster, self.group.lab, self._ask, self.tell)
            paths = {"graph": str(graph), "cluster": str(cluster), "first": str(first)}
            self.opening = dict[str, Any](paths, task=self.task, seed=self.seed, timeout=self.timeout * TIMEOUT_FACTOR)
            with self.group.lab.lifted():
                self._ask("open", **self.opening)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about what the lab does not emulate here, and about other work on the machine while costs were
        measured."""
        return (*self.group.lab.notes, *self._profiler.beside)

    @property
    def distorted(self) -> str:
        """Why times measured here are not those of the cluster: its devices have quotas, and this lab cannot set
        any; "" if they are."""
        quotas = self.cluster.emulated and any(device.cores for device in self.cluster.devices)
        return "; ".join(self.group.lab.notes) or "no CPU quotas here" if quotas and not self.group.lab.groups else ""

    def _ask(self, verb: str, limit: Seconds = 0.0, **payload: Any) -> list[dict[str, Any]]:
        return self.group.ask_all(verb, payload, limit or self.timeout * 2, self._hear)

    def _hear(self, rank: int, event: dict[str, Any]) -> None:
        if progress := self.going.hear(rank, event, time.perf_counter()):
            self.tell(progress)
        if "note" in event:
            self.note(event["note"])
        for sentence in self.monitor.hear(rank, event) if self.monitor else ():
            self.note(sentence)

    def probe(
        self, plans: Sequence[Plan], kinds: Collection[Kind] = CURVED, schedules: Collection[str] = ()
    ) -> Costs:  # fmt: skip
        """Costs of everything that the plans' programs do, by micro-benchmarks with all devices busy at once; of
        collectives of these kinds, and of all-reduces by each of these algorithms."""
        return self._profiler.probe(plans, kinds, schedules)

    def as_now(self, costs: Costs, plans: Sequence[Plan]) -> Costs:
        """Costs that `probe` measured for these plans, as the host is now."""
        return self._profiler.as_now(costs, plans)

    def train(
        self, plan: Plan, *, steps: int, keep: SavePolicy, keyed: bool = False, resume: str = "", since: int = 0,
        evaluation: EvaluationPolicy = NONE, note: Tell = quiet,
    ) -> RunResult:  # fmt: skip
        """Train up to step `steps`, from the first weights or from the checkpoint in `resume`, which is of step
        `since`.

        The first three steps that it takes do not count for the seconds of a step. With `keep.out`, a first SIGTERM,
        SIGINT or SIGHUP ends the run at a checkpoint: raises RunStopped.
        """
        self.note = note
        order = {"out": keep.out, "every": keep.every, "keep": keep.many, "keyed": keyed, "resume": resume}
        order |= {"evaluate_every": evaluation.every, "patience": evaluation.patience}
        spare = [] if keep.every or evaluation.every or resume else self._expendable(plan, steps)
        self.monitor = Monitor(last_program(self.graph, plan, self.cluster), self.cluster)
        with forwarding(self.group.workers, wanted=bool(keep.out)) as heard:
            try:
                with advising(keep.out):
                    result = self._run(plan, steps, min(3, max(steps - since - 1, 0)), spare, **order)
                for sentence in self.monitor.at_end(result.timeline):
                    note(sentence)
                return result
            except RunError as error:
                if not heard.number or isinstance(error, RunStopped):
                    raise
                raise RunStopped(f"stopped by a signal; {error}", heard.number) from None
            except Halted as halted:
                raise RunStopped(stopped_at(halted.step, keep.out), heard.number, step=halted.step) from None
            finally:
                self.monitor = None

    def measure(self, plan: Plan, *, steps: int, evaluate: bool = True) -> RunResult:
        """Run at least `steps` whole rounds of the steady state, after three steps and every warm-up of the plan."""
        program = last_program(self.graph, plan, self.cluster)
        discard = max(3, program.drain + sum(phase.steps for phase in plan.before))
        discard += -discard % program.steps
        return self._run(plan, steps + -steps % program.steps + discard, discard, evaluate=evaluate)

    def _expendable(self, plan: Plan, steps: int) -> list[int]:
        """The ranks that may die in a run without checkpoints or evaluations. Rank 0 may not, since it keeps the store;
        no server may if the run has several Programs."""
        programs = [leg.program for leg in legs(self.graph, plan, self.cluster, steps)]
        found = [r for r in range(1, programs[0].size) if all(r < p.size and expendable(p, r) for p in programs)]
        return [r for r in found if len(programs) == 1 or programs[0].role_of[r].keeps == "model"]

    def _run(self, plan: Plan, steps: int, discard: int, spare: Sequence[int] = (), **order: Any) -> RunResult:
        program = last_program(self.graph, plan, self.cluster)
        self.runs, self.going = self.runs + 1, Progress(plan.name, steps, program.size)
        order |= {"plan": write_plan(plan), "steps": steps, "spare": list(spare), "number": self.runs}
        back = {"verb": "open", "back": True, **self.opening}, {"verb": "run", "back": True, **order}
        again, chains = all(returns(program, r) for r in spare), {chain_of(program, r) for r in spare} - {()}
        spares = Spares(spare, back if again else (), RETURNS, chains)
        try:
            replies = self.group.ask_all("run", order, 2 * self.timeout, self._hear, STALL_SHARE * self.timeout, spares)
        except RunHung as hung:
            raise stalled(program, self.group.workers, self.group.links, hung) from None
        return result_of(program, replies, discard)

    def memory(self, plan: Plan) -> tuple[MemoryTrace, ...]:
        """Measured live tensor bytes on each rank, from allocator events in a short run of its own, without quotas."""
        size = last_program(self.graph, plan, self.cluster).size
        with self.group.lab.lifted():
            replies = self._ask("memory", 600.0, plan=write_plan(plan))
        return tuple(read_memory_trace(reply) for reply in replies[:size])
