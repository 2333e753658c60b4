"""Putting a rank together: from a task, a graph and a Program to something that a driver can advance; and all ranks of
a run in one thread, as `verify` has them (`train_in_process`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from partita.checkpoints.checkpoint import SavePolicy
from partita.checkpoints.dividing import restored
from partita.checkpoints.holding import held
from partita.checkpoints.losses import Losses, LossFile, begun_in, losses_of, taken_rows, totals
from partita.checkpoints.manifest import Moment, manifest_of
from partita.checkpoints.restore import Checkpoint
from partita.checkpoints.saving import save_shards
from partita.cluster.cluster import Cluster
from partita.graph.batch import substitute
from partita.graph.operator import Ref
from partita.plan.plan import Plan
from partita.program.layout import MASS
from partita.program.program import Program, Role
from partita.runtime.device import clock_of
from partita.runtime.feed import Feed, floats_of
from partita.runtime.gather import reunited
from partita.runtime.interleaving import advance
from partita.runtime.leg import intervals, left
from partita.runtime.owned import is_allocated
from partita.runtime.rank import Code, Rank
from partita.runtime.segment import compile_segment, last_reads
from partita.runtime.shared import in_common
from partita.runtime.state import State, make_state
from partita.runtime.whole import Whole
from partita.runtime.workload import Workload
from partita.task import Task
from partita.tracing.prepare import cast
from partita.transport.inprocess import InProcess, Rendezvous
from partita.transport.transport import Transport

Values = dict[str, torch.Tensor]


def initial(task: Task, seed: int, precision: str = "") -> tuple[Any, Values]:
    """The task's module in a precision, the task's unless given, built under `manual_seed(seed)`, and its parameters
    and buffers by name (tied ones once)."""
    torch.manual_seed(seed)
    model = cast(task.model(), precision or task.precision)
    return model, values_of(model)


def values_of(model: Any) -> Values:
    """Parameters and buffers of a module under its own names."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def compiled(work: Workload, program: Program, role: Role) -> tuple[dict[str, Code], set[Ref]]:
    """The code of every segment that a role runs, and the values that any of it reads."""
    wanted = {i.act.segment for i in role.instructions if hasattr(i.act, "segment")}
    code: dict[str, Code] = {}
    reads: set[Ref] = set()
    for stage, batch in {(program.segment[name].stage, program.segment[name].batch) for name in wanted}:
        concrete = substitute(program.graph_of(stage, work.graph), batch)
        last = last_reads(concrete)
        reads |= last.keys()
        for name in wanted:
            segment = program.segment[name]
            if (segment.stage, segment.batch) == (stage, batch):
                here = segment.start, segment.stop
                code[name] = compile_segment(concrete, *here, work.device, last, program.compiled)
    return code, reads


def make_rank(
    work: Workload, program: Program, rank: int, state: State, transport: Transport, *, first_step: int = 0,
    code: tuple[dict[str, Code], set[Ref]] | None = None,
) -> Rank:  # fmt: skip
    """A rank whose round 0 is step `first_step`, ready to be driven. `code` is what `compiled` makes of its role, if
    that is there."""
    role = program.role_of[rank]
    segments, reads = code or compiled(work, program, role)
    uses = Counter(part for i in role.instructions if (part := getattr(i.act, "part", "")))
    made = Rank(
        work.graph, program, role, rank, state, transport, Feed(work.task, work.seed), segments, reads, uses,
        work.device, floats_of(work.task, work.precision), first_step, work.seed if work.keyed else None,
        Whole.of(work) if work.graph.rung == "opaque" else None, clock_of(work.device),
    )  # fmt: skip
    if state.scaler:
        state.scaler.begin()
    state.ledger.begin()
    return made


def go_on(rank: Rank, saved: Checkpoint) -> None:
    """Put a checkpoint into a rank that is new: its state, and as done the rounds whose gradients are in flight."""
    restored(saved, rank.feed.task, rank.graph, rank.program, rank.rank, rank.state, rank.device)
    rank.board.done = dict.fromkeys((i.name for i in rank.role.instructions), saved.flying(rank.program))
    rank.collectives_begun = rank.board.done.copy()


def train_in_process(
    work: Workload, plan: Plan, cluster: Cluster, steps: int, *, order: int = 0, slow: dict[int, float] | None = None,
    values: Mapping[str, torch.Tensor] | None = None, keep: SavePolicy | None = None, saved: Checkpoint | None = None,
    settle: bool = True,
) -> tuple[dict[int, State], dict[int, float]]:  # fmt: skip
    """Train up to step `steps` with every rank in this thread, lanes advanced in the order that `order` seeds.

    Returns the state of each rank and the loss of each step. The task's model is built under the seed unless
    `values` gives its parameters and buffers; `keep` says where checkpoints go, and `saved` is one to go on from.
    Without `settle`, replicas are left as different as they are before what brings them together at the end.
    """
    start = dict(values) if values is not None else initial(work.task, work.seed, work.precision)[1]
    states: dict[int, State] = {}
    losses = _LossRecord(begun_in(keep.out if keep else ""), saved)
    since, flying = (saved.manifest.step, saved.manifest.flying) if saved else (0, 0)
    parts = left(work.graph, plan, cluster, steps, since, flying)
    for i, leg in enumerate(parts):
        if not settle and leg is parts[-1] and not leg.program.steps:
            break
        program, rendezvous = leg.program, Rendezvous()
        anew = i > 0 and leg.plan != parts[i - 1].plan
        states = {r: carry_over(work, program, r, start, states.get(r), anew=anew) for r in range(program.size)}
        code = {role.name: compiled(work, program, role) for role in program.roles}
        flying = saved.flying(program) if saved else 0
        ranks = [
            make_rank(
                work, program, r, states[r], InProcess(r, rendezvous), first_step=leg.step - flying * program.steps,
                code=code[program.role_of[r].name],
            )
            for r in range(program.size)
        ]  # fmt: skip
        if saved:
            for rank in ranks:
                go_on(rank, saved)
            saved = None
        in_common(ranks)
        for interval in intervals(leg, flying, keep.every if keep else 0, not any(p.whole for p in parts[i + 1 :])):
            advance(ranks, interval, order, slow)
            losses.take(ranks)
            if keep and interval.keep:
                in_flight = 0 if interval.drain else min(interval.stop, program.drain)
                moment = Moment(ranks[0].step(interval.stop, 0), in_flight)
                manifest = manifest_of(work, plan, program, moment)
                shards = [held(rank, interval.stop, in_flight) for rank in ranks]
                losses.file = save_shards(shards, keep, manifest, losses.file, losses.noted())
    reunited(parts[-1].program, states)
    return states, losses.of_step


class _LossRecord:
    """The losses of a run in this thread: `of_step` of all steps; a checkpoint notes those since the one before in the
    `file`."""

    def __init__(self, file: LossFile, saved: Checkpoint | None) -> None:
        self.file = file
        self.of_step = {at: loss for at, _, loss, _ in losses_of(saved)[1]} if saved else {}
        self._fresh = dict(self.of_step)

    def take(self, ranks: Sequence[Rank]) -> None:
        """Add what ranks have computed since they were last asked."""
        self._fresh |= totals(row for rank in ranks for row in taken_rows(rank))
        self.of_step |= self._fresh

    def noted(self) -> Losses:
        """The rows for a checkpoint, which are not fresh any more."""
        fresh, self._fresh = self._fresh, {}
        return [(at, 0.0, loss, 0.0) for at, loss in fresh.items()]


def carry_over(
    work: Workload, program: Program, rank: int, values: Values, before: State | None, *, anew: bool = False
) -> State:
    """The rank's state for its next Program, which cuts the parameters in the same way: fresh, or the one before with
    the gradient copies that this one needs. Where a phase begins `anew`, so does what an agreement between replicas
    keeps: a centre, what an outer optimizer has, the weight of a sum."""
    role = program.role_of[rank]
    now = {} if before is None else {name: leaf for name, leaf in before.leaves.items() if is_allocated(leaf)}
    fresh = make_state(work.graph, program, role, work.task, {**values, **now}, work.device, rank)
    if before is None:
        return fresh
    anew = anew and program.semantics == "consensus"
    found = replace(
        fresh,
        optimizer=before.optimizer,
        units=dict(before.units),
        schedule=before.schedule,
        leaves=before.leaves,
        parameter=fresh.parameter | {name: own for name, own in before.parameter.items() if not anew or name != MASS},
        views=before.views,
        kept=fresh.kept if anew else fresh.kept | before.kept,
        outbox=fresh.outbox if anew else fresh.outbox | before.outbox,
        ledger=before.ledger,
        squares=before.squares,
        clocks=before.clocks,
        owned={name: replace(own, gradient=fresh.owned[name].gradient) for name, own in before.owned.items()},
        master=before.master,
        scaler=before.scaler,
    )
    for name in found.optimizer:
        found.arrange(name)
    return found
