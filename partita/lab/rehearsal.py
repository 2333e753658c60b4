"""A task on a cluster emulated by this machine: one set of workers that is probed and then runs plan after plan."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from math import inf
from statistics import fmean, median
from types import TracebackType
from typing import Any, Final

import torch

from partita.checkpoints.checkpoint import SavePolicy, advising, stopped_at
from partita.cluster.cluster import Cluster
from partita.cluster.writing import write_cluster
from partita.cost.cache import cache_place, read_cache, write_cache
from partita.cost.costs import Costs
from partita.cost.wiring import CURVED, Wiring
from partita.cost.workspaces import NONE
from partita.errors import RunError, RunHung, RunStopped
from partita.graph.graph import Graph
from partita.graph.text import write_graph
from partita.lab.background_load import BEARABLE, HEAVY, BackgroundLoad
from partita.lab.costing import batches_by_company, precisions_of, seconds_alone
from partita.lab.failures import STALL_SHARE, stalled
from partita.lab.forward import forwarding
from partita.lab.launching import launches_of, with_launching
from partita.lab.link_costs import sizes_for, wiring_of, with_disturbance
from partita.lab.monitor import Monitor
from partita.lab.processor import processor_here
from partita.lab.record import scratch
from partita.lab.replies import calls_of, coding_of, with_coding, workspaces_of
from partita.lab.slowdowns import as_then, of_all, pooled, steady
from partita.lab.spares import Spares
from partita.lab.timed_links import TimedLinks, drop_links, links_place, read_links, write_links
from partita.lab.worker_group import WorkerGroup
from partita.lowering.lower import last_program
from partita.plan.plan import Plan
from partita.plan.text import write_plan
from partita.probes.codecs import coded_elements
from partita.probes.operator_timing import TOTAL
from partita.program.absence import chain_of, expendable, returns
from partita.program.space import Kind
from partita.runs.execution import progress_of
from partita.runs.memory_trace import MemoryTrace, read_memory_trace
from partita.runs.result import Halted, RunResult, result_of
from partita.runs.weights import write_first
from partita.runtime.leg import legs
from partita.task import Task, load_task, spec_of
from partita.telling import Tell, quiet
from partita.units import Seconds
from partita.zoo.tasks import built_in

TIMEOUT_FACTOR: Final = 100  # times --timeout, for which workers wait alone: a message may take long on a slow link
GLANCE: Final[Seconds] = 0.3  # of a core, for timing operators again between runs
RARE: Final = 8  # from one such time to the next: so many times as long as it takes, at least
LATELY: Final = 7  # times that count, the two when costs were measured among them
RETURNS: Final = 3  # times that a worker is started again in a run


class Rehearsal:
    """Workers on every device of `cluster` that have loaded `task`; use as a context manager.

    `task` is a Task that workers can load as well, or the text that they load it by. With `memory_limits` the kernel
    kills a worker that takes more than its device's memory.

    Raises RunError naming rank and step if a worker dies, RunHung if one does not answer in time.
    """

    def __init__(
        self, task: Task | str, graph: Graph, cluster: Cluster, *, seed: int = 0, init: str = "",
        timeout: Seconds = 60.0, tell: Tell = quiet, memory_limits: bool = False,
    ) -> None:  # fmt: skip
        self.task, self.given, self.graph, self.cluster = spec_of(task), task, graph, cluster
        self.seed, self.init, self.timeout, self.tell, self.note = seed, init, timeout, tell, tell
        self.going = "", 0  # the plan that runs, and for how many steps
        self.beside: list[str] = []
        self.runs, self.launches, self.workspaces = 0, dict[str, Seconds](), NONE
        self._links: TimedLinks | None = None
        self._places = dict[bool, dict[str, Seconds]]()  # by whether all ranks are busy
        self._times = deque[tuple[float, ...]](maxlen=LATELY)  # each with every rank's slowdown
        self._unevenness, self._even = list[float](), (1.0,) * cluster.size
        self._due: Seconds = -inf  # when operators are to be timed again
        self.monitor: Monitor | None = None
        self.group = WorkerGroup(cluster, listen=True, memory_limits=memory_limits)
        self._stack = ExitStack()

    def __enter__(self) -> Rehearsal:
        with ExitStack() as stack:
            place = stack.enter_context(scratch())
            graph, cluster, first = place / "graph.json", place / "cluster.toml", place / "first.safetensors"
            write_graph(self.graph, graph)
            loaded = self.given if isinstance(self.given, Task) else load_task(self.given, built_in)
            write_first(loaded, self.seed, self.init, first)
            cluster.write_text(write_cluster(self.cluster), encoding="utf-8")
            self.tell(f"starting {self.cluster.size} workers on {self.cluster.name}")
            stack.enter_context(self.group)
            self._kept = links_place(self.cluster, torch.__version__, *self.group.lab.notes)
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
        return (*self.group.lab.notes, *self.beside)

    @property
    def distorted(self) -> str:
        """Why times measured here are not those of the cluster: its devices have quotas, and this lab cannot set
        any; "" if they are."""
        quotas = self.cluster.emulated and any(device.cores for device in self.cluster.devices)
        return "; ".join(self.group.lab.notes) or "no CPU quotas here" if quotas and not self.group.lab.groups else ""

    def _ask(self, verb: str, limit: Seconds = 0.0, stall: Seconds = inf, **payload: Any) -> list[dict[str, Any]]:
        return self.group.ask_all(verb, payload, limit or self.timeout * 2, self._hear, stall)

    def _hear(self, rank: int, event: dict[str, Any]) -> None:
        if (progress := progress_of(event, *self.going)) and (rank == 0 or "step" not in event):
            self.tell(progress)
        if "note" in event:
            self.note(event["note"])
        for sentence in self.monitor.hear(rank, event) if self.monitor else ():
            self.note(sentence)

    def probe(self, plans: Sequence[Plan], kinds: Collection[Kind] = CURVED) -> Costs:
        """Costs of everything that the plans' programs do, by micro-benchmarks with all devices busy at once; of
        collectives of these kinds."""
        lonely, busy = batches_by_company(self.graph, self.cluster, plans)
        batches, steps, background = sorted({*lonely, *busy}), ["", *precisions_of(plans)], BackgroundLoad()
        self.tell(f"timing operators for {', '.join(map(str, batches))} samples")
        lone, early = self._operators(lonely, 1, steps)
        operators, sooner = self._operators(busy, self.cluster.size, steps)
        self.tell("timing copies, updates and links, about a minute")
        codecs = coded_elements(self.graph, plans, self.cluster)
        touches = self._touched(busy, self.cluster.size, operators, codecs=codecs, passes=False)
        touched = self._touched(lonely, 1, lone, codecs={} if busy else codecs, passes=bool(busy))
        touches = touches or touched
        wiring = self._wiring(kinds, max(busy, default=0)) if self.cluster.size > 1 else Wiring()
        self.tell("timing some operators again")
        late = self._slowdowns(lonely, 1, steps, lone)
        later = self._slowdowns(busy, self.cluster.size, steps, operators)
        lone, self._places[False], times = as_then(lone, self._places.get(False, {}), (early, late))
        if busy:
            operators, self._places[True], times = as_then(operators, self._places[True], (sooner, later))
        self._times, slowdowns = deque(times, maxlen=LATELY), steady(times)
        operators = {name: seconds / slowdowns[0] for name, seconds in lone.items()} | operators
        if (cores := background.cores()) > HEAVY:
            self._links = None
            drop_links(self._kept)
        if cores > BEARABLE:
            self.beside = [
                f"other work used {cores:.1f} cores of this machine while costs were measured, so neither predictions "
                "nor runs are what they are without it; repeat on a quiet machine"
            ]
        costs = Costs(
            self.graph, self.group.lab.cluster, operators, **calls_of(touches).given,
            alone=calls_of([{**touches[0], **touched[0]}]) if touched and busy else None, sizes=tuple(batches),
            wiring=with_coding(wiring, touches), hosts=self.group.lab.hosts,
            codecs={name: coding_of(touches, name) for name in codecs}, slowdowns=slowdowns,
            unevenness=fmean(self._unevenness), processor=processor_here(), workspaces=self.workspaces,
            at_hand=touches[0]["at_hand"],
        )  # fmt: skip
        return with_launching(costs, self.launches, touches)

    def _touched(
        self, batches: Sequence[int], ranks: int, operators: Mapping[str, Seconds], **what: Any
    ) -> list[dict[str, Any]]:
        """Replies of the first `ranks` ranks with `what` is touched between steps of so many samples."""
        age = seconds_alone(self.graph, self.cluster, operators, min(batches)) if batches else 0.0
        return self._ask("touches", 120.0, count=max(batches), age=age, ranks=ranks, **what)[:ranks] if batches else []

    def as_now(self, costs: Costs, plans: Sequence[Plan]) -> Costs:
        """Costs that `probe` measured for these plans, as the host is now: now and then some operators are timed
        again, for a host's speed drifts by a tenth within minutes. The last few times count. A model that is one
        operator keeps its costs."""
        if self.graph.rung == "opaque":
            return costs
        if time.monotonic() >= self._due:
            lonely, busy = batches_by_company(self.graph, self.cluster, plans)
            ranks, steps = self.cluster.size if busy else 1, ["", *precisions_of(plans)]
            slowdowns = self._slowdowns(busy or lonely, ranks, steps, costs.operators, GLANCE)
            self._times.append(slowdowns)
        return replace(costs, slowdowns=steady(self._times))

    def _operators(
        self, batches: Sequence[int], ranks: int, steps: Sequence[str]
    ) -> tuple[dict[str, Seconds], tuple[float, ...]]:
        """(signature -> core-seconds, each rank's slowdown), timed while `ranks` devices are busy, since neighbours
        share caches and memory bandwidth."""
        if not batches:
            return {}, self._even
        cores = min(device.cores for device in self.cluster.devices)
        place = cache_place(torch.__version__, cores, ranks > 1)
        kept = all(device.hosted for device in self.cluster.devices)
        cached = read_cache(place) if kept else {}
        background = BackgroundLoad()
        replies = self._timed(batches, ranks, steps, cached)
        self._unevenness.append(median(reply["unevenness"] for reply in replies))
        reference = median(reply["reference"] for reply in replies)
        known = {name: value * reference for name, value in cached.items()}
        found, self._places[ranks > 1], slowdowns = pooled(replies, known)
        if kept and background.cores() <= BEARABLE:
            write_cache(place, found | self._places[ranks > 1], reference)
        return found, of_all(slowdowns, self.cluster.size)

    def _slowdowns(
        self, batches: Sequence[int], ranks: int, steps: Sequence[str], known: Mapping[str, Seconds],
        total: Seconds = TOTAL,
    ) -> tuple[float, ...]:  # fmt: skip
        """Each rank's slowdown, from timing some operators again whose core-seconds are `known`."""
        if not batches:
            return self._even
        begun = time.monotonic()
        replies = self._timed(batches, ranks, steps, (*known, *self._places[ranks > 1]), total)
        self._due = time.monotonic() + RARE * (time.monotonic() - begun)
        return of_all(pooled(replies, self._places[ranks > 1])[2], self.cluster.size)

    def _timed(
        self, batches: Sequence[int], ranks: int, steps: Sequence[str], known: Iterable[str], total: Seconds = TOTAL
    ) -> list[dict[str, Any]]:
        """Replies with the times of operators that are not known, and of some that are, on the first `ranks` ranks."""
        order: dict[str, Any] = {"batches": list(batches), "known": list(known), "ranks": ranks, "steps": list(steps)}
        replies = self._ask("operators", 600.0, total=total, **order)[:ranks]
        self.launches = launches_of(replies) | self.launches
        self.workspaces = workspaces_of(replies, self.workspaces)
        return replies

    def _wiring(self, kinds: Collection[Kind], batch: int) -> Wiring:
        """Costs of links: those that were timed first, or for another task some minutes ago, unless much other work was
        beside; and what messages cost computing `batch` samples."""
        sizes, last = sizes_for(self.cluster), self._links or read_links(self._kept)
        if not last.kinds.issuperset(kinds):
            wanted = [kind for kind in CURVED if kind in kinds or kind in last.kinds]
            replies = self._ask("wires", 300.0, sizes=list(sizes), kinds=wanted)
            found = wiring_of(replies, self.group.lab.cluster, self.group.lab.hosts)
            last = TimedLinks(frozenset(wanted), found)
            write_links(self._kept, last)
        self._links = last
        if not batch or self.graph.rung == "opaque":
            return last.wiring
        return with_disturbance(last.wiring, self._ask("beside", 120.0, batch=batch, largest=sizes[-1]))

    def train(
        self, plan: Plan, *, steps: int, keep: SavePolicy, keyed: bool = False, resume: str = "", since: int = 0,
        note: Tell = quiet,
    ) -> RunResult:  # fmt: skip
        """Train up to step `steps`, from the first weights or from the checkpoint in `resume`, which is of step
        `since`.

        The first three steps that it takes do not count for the seconds of a step. With `keep.out`, a first SIGTERM,
        SIGINT or SIGHUP ends the run at a checkpoint: raises RunStopped.
        """
        self.note = note
        order = {"out": keep.out, "every": keep.every, "keep": keep.many, "keyed": keyed, "resume": resume}
        spare = [] if keep.every or resume else self._expendable(plan, steps)
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
        """The ranks that may die in a run without checkpoints. Rank 0 may not, since it keeps the store; no server
        may if the run has several Programs."""
        programs = [leg.program for leg in legs(self.graph, plan, self.cluster, steps)]
        found = [r for r in range(1, programs[0].size) if all(r < p.size and expendable(p, r) for p in programs)]
        return [r for r in found if len(programs) == 1 or programs[0].role_of[r].keeps == "model"]

    def _run(self, plan: Plan, steps: int, discard: int, spare: Sequence[int] = (), **order: Any) -> RunResult:
        program = last_program(self.graph, plan, self.cluster)
        self.runs, self.going = self.runs + 1, (plan.name, steps)
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
