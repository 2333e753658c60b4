"""One process of a run, or of many runs one after the other: it holds the task and its first weights, and carries
out plans."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, Final, TypeAlias

import torch
import torch.distributed as dist

from partita.checkpoints.restore import Checkpoint
from partita.cluster.cluster import Cluster
from partita.cost.memory import peak_memory
from partita.errors import first_line
from partita.graph.graph import Graph
from partita.lowering.lower import last_program
from partita.plan.plan import Plan
from partita.program.instruction import Collective, Send
from partita.program.program import Program
from partita.runs.assembly import Values, carry_over, go_on, initial, make_rank
from partita.runs.heap import limit, make_room
from partita.runs.memory_trace import MemoryTrace, allocations
from partita.runs.weights import first_weights, map_first, save_weights
from partita.runtime.device import CPU, taken_up
from partita.runtime.evaluation import loss_alone
from partita.runtime.feed import floats_of, place
from partita.runtime.gather import gathered_leaves
from partita.runtime.generators import begin_draws
from partita.runtime.interleaving import advance
from partita.runtime.leg import Interval
from partita.runtime.rank import Rank
from partita.runtime.shared import mapped
from partita.runtime.state import State
from partita.runtime.workload import Workload
from partita.task import Task, judged_by
from partita.tracing.prepare import read_batch
from partita.transport.clocks import clock_offset
from partita.transport.messages import come, wait_for
from partita.transport.processes import Processes
from partita.units import Seconds
from partita.wire.algorithms import by_messages

EVERY: Final[Seconds] = 0.5  # between reports
UNKNOWN: Final = (
    "{which} is not known, for the loss of {name!r} failed in evaluation mode ({why}); let task.loss(model.eval(), "
    "batch) work"
)
AT_END: Final = "the run is done, and its held-out loss"
Report: TypeAlias = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, slots=True)
class Job:
    """A run to carry out: `steps` steps of `plan` in all.

    `record` keeps the spans of the last rounds. `out` is where rank 0 writes the weights, and all ranks a checkpoint
    after every `every` steps (0: only when a signal stops the run), of which `keep` stay; `resume` is the checkpoint to
    continue from. `keyed`: random numbers do not depend on the plan. `evaluate`: compute the held-out loss at the end;
    `evaluate_every` and `patience` say when before that, as an `EvaluationPolicy` does.

    It is the `number`-th run of the session, and goes on without ranks in `spare`. A rank that is `back` enters where
    the others are, except for those that are `absent`.
    """

    plan: Plan
    steps: int
    record: int = 2
    out: str = ""
    keyed: bool = False
    evaluate: bool = True
    evaluate_every: int = 0
    patience: int = 0
    every: int = 0
    keep: int = 2
    resume: str = ""
    spare: Sequence[int] = ()
    number: int = 0
    back: bool = False
    absent: Sequence[int] = ()


@dataclass
class Session:
    """One rank's process. Every run begins with the first weights: the mapped `values`, or those that the seed or
    the file `init` gives, which are then made for each run; `built` is the state of torch's generator that making the
    mapped ones left."""

    task: Task
    graph: Graph
    cluster: Cluster
    seed: int
    rank: int
    world: int
    timeout: Seconds
    device: str = CPU
    init: str = ""
    values: Values = field(default_factory=dict)
    transport: Processes = field(init=False)  # from `open` on
    offset: Seconds = 0.0
    built: torch.Tensor | None = None
    _meetings: int = 0

    def open(self, init: str = "", first: str = "", back: bool = False) -> None:
        """Join the other ranks and align clocks. `first` is the file of the first weights, if a launcher wrote one.
        A rank that is `back` joins when the run begins."""
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
        taken_up(self.device, self.seed)
        self.init = init
        if first:
            self.values, self.built = map_first(Path(first))
        self.transport = Processes(self.rank)
        if self.world > 1 and not back:
            self.offset = clock_offset(self.rank)

    def workload(self, keyed: bool = False) -> Workload:
        """What this process computes, in a run whose random numbers do not depend on the plan if `keyed`."""
        return Workload(self.task, self.graph, self.seed, keyed=keyed, device=self.device)

    def first(self, state: State | None = None) -> Values:
        """The first weights. If they have to be made while a run is under way, its random state is restored."""
        if self.values:
            return self.values
        with torch.random.fork_rng(devices=[]) if state is not None else nullcontext():
            return first_weights(self.task, self.seed, self.init)

    @contextmanager
    def together(self, all_of_them: bool = True) -> Iterator[None]:
        """A context in which ranks work, or are idle if a plan does not use them; all leave it together, or each once
        rank 0 does. Waiting has no limit, since work may take any time; a rank that dies is found as `wait_for`
        says."""
        key, self._meetings = f"meeting/{self._meetings}", self._meetings + 1
        try:
            yield
        finally:
            if self.world > 1:
                come(key, self.rank)
        if self.world > 1:
            wait_for(key, range(self.world if all_of_them else 1))
            if all_of_them:
                dist.barrier()

    def memory(self, job: Job) -> MemoryTrace | None:
        """The live bytes of tensors in the last rounds of a run of its own, from the allocator's events; None if the
        plan does not use this rank.

        torch's profiler records one thread, so one thread carries out all lanes.
        """
        program = last_program(self.graph, job.plan, self.cluster)
        self.join(program)
        with self.together():
            return self._watch(program) if self.rank < program.size else None

    def _watch(self, program: Program) -> MemoryTrace:
        interval, values = Interval(program.drain + 2), self.first()
        with allocations(self.device) as seen:
            rank = self.rank_for(program, None, 0, values=values)
            advance([rank], interval, patience=self.timeout, driven=True)
            seen.steady()
            rank.board.done.clear()
            last = range(interval.stop - 2, interval.stop)
            advance([rank], interval, patience=self.timeout, record=last.__contains__, driven=True)
        return seen.watch([span for span in rank.spans if span.lane == rank.role.leading])

    def join(self, program: Program) -> None:
        """Make the process groups of a program's collectives and messages; every rank of the world must call it, also
        those that the program does not use."""
        acts = [(i.lane, i.act) for _, i in program.instructions() if isinstance(i.act, Send | Collective)]
        own = [(lane, act) for lane, act in acts if isinstance(act, Collective) and not by_messages(act)]
        groups = {(lane, group) for lane, act in own for group in act.groups if len(group) > 1}
        self.transport.join(sorted(groups), self.timeout, messages=len(own) < len(acts))

    def rank_for(
        self, program: Program, state: State | None, step: int, keyed: bool = False, saved: Checkpoint | None = None,
        values: Values | None = None, *, anew: bool = False,
    ) -> Rank:  # fmt: skip
        """This process's Rank, whose round 0 is step `step`. Its state is `state`, that of a checkpoint, or a new
        one; `anew` is as in `carry_over`."""
        if self.device == CPU and limit() < inf:
            make_room(peak_memory(program, self.graph, self.rank))
        first = self.first(state) if values is None else values
        work = self.workload(keyed)
        made = carry_over(work, program, self.rank, first, state, anew=anew)
        if state is None:
            begin_draws(self.seed, self.rank, step, self.device, self.built)
        rank = make_rank(work, program, self.rank, made, self.transport, first_step=step)
        if saved is not None:
            go_on(rank, saved)
        if state is None:
            mapped(rank)
        return rank

    def leaves(self, job: Job, state: State | None) -> dict[str, torch.Tensor]:
        """The whole model after a run, on rank 0, if it is wanted."""
        if state is None or not (job.evaluate or job.out):
            return {}
        program = last_program(self.graph, job.plan, self.cluster)
        return gathered_leaves(program, self.graph, self.rank, state)

    def module(self, leaves: dict[str, torch.Tensor]) -> Any:
        """The task's module with these weights."""
        with torch.random.fork_rng(devices=[]):
            model, values = initial(self.task, self.seed)
        with torch.no_grad():
            for name, tensor in values.items():
                tensor.copy_(leaves[name])
        return model

    def evaluate(self, model: Any, report: Report, which: str = AT_END) -> float | None:
        """Mean loss over the samples of `judged_by`; reports how many samples of how many it has seen, twice a second.
        None, with a note on `which` loss, where it fails: what is trained is not lost by it."""
        data, count, _ = judged_by(self.task)
        with many_threads(len(os.sched_getaffinity(0))):  # the other ranks of this machine wait
            try:
                return evaluate(self.task, model.to(self.device), data, count, self.device, report)
            except Exception as error:  # of the user's loss, model or data set, in evaluation mode
                report({"note": UNKNOWN.format(which=which, name=self.task.name, why=first_line(error))})
                return None

    def save(self, model: Any, out: str, name: str = "model.safetensors", words: dict[str, str] | None = None) -> str:
        """Write the model, and `words` about it, into a file of the folder `out`; returns its path."""
        path = Path(out) / name
        save_weights(model, path, words)
        return str(path)


@contextmanager
def many_threads(count: int) -> Iterator[None]:
    """So many threads compute each operator meanwhile."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def evaluate(task: Task, model: Any, data: Any, count: int, device: str, report: Report = lambda event: None) -> float:
    """Mean loss of `model` in evaluation mode over the first `count` samples of `data`."""
    from torch.utils._pytree import tree_map

    total, weight, size, due = 0.0, 0.0, min(task.batch_size, count), time.monotonic() + EVERY
    model.eval()
    for start in range(0, count, size):
        positions = range(start, min(start + size, count))
        batch = tree_map(partial(place, device=device, floating=floats_of(task)), read_batch(task, data, positions))
        loss = loss_alone(task, model, batch)
        part = (
            (float(loss[0]), float(loss[1]))
            if isinstance(loss, tuple)
            else (float(loss) * len(positions), float(len(positions)))
        )
        total, weight = total + part[0], weight + part[1]
        if time.monotonic() >= due:
            report({"evaluated": [positions.stop, count]})
            due = time.monotonic() + EVERY
    model.train()
    return total / weight
