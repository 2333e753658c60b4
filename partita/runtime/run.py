"""Putting a rank together: from a task, a graph and a Program to something that a driver can advance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from partita.cluster.cluster import Cluster
from partita.errors import TaskError
from partita.graph.batch import substitute
from partita.graph.graph import Graph
from partita.graph.operator import Ref
from partita.lowering.lower import Stretch, lower, lower_phase
from partita.plan.plan import Plan
from partita.program.program import Program, Role
from partita.runtime.feed import Feed
from partita.runtime.inprocess import Hall, InProcess
from partita.runtime.losses import rows_of, totals
from partita.runtime.pace import Pace
from partita.runtime.rank import Code, Rank
from partita.runtime.schedules import advance
from partita.runtime.segment import compile_segment, last_reads
from partita.runtime.state import State, make_state
from partita.runtime.transport import Transport
from partita.task import Task
from partita.tracing.prepare import DTYPES

Values = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Leg:
    """`rounds` rounds of a Program, the next part of a run."""

    rounds: int
    program: Program


def legs(graph: Graph, plan: Plan, cluster: Cluster, steps: int) -> tuple[Leg, ...]:
    """A run of `steps` steps, phase by phase; steps that do not fill the last period are a shorter one."""
    found: list[Leg] = []
    left = steps
    for stretch in lower(graph, plan, cluster):
        taken = min(stretch.steps or left, left)
        found += _filled(graph, plan, stretch, taken)
        left -= taken
    return tuple(leg for leg in found if leg.rounds)


def _filled(graph: Graph, plan: Plan, stretch: Stretch, steps: int) -> list[Leg]:
    rounds, rest = divmod(steps, stretch.program.steps)
    found = [Leg(rounds, stretch.program)]
    if rest:
        sync = replace(plan.sync[0], often=replace(plan.sync[0].often, period=rest))
        found.append(Leg(1, lower_phase(graph, replace(plan, sync=(sync, *plan.sync[1:]), before=()))))
    return found


def initial(task: Task, seed: int, precision: str = "") -> tuple[Any, Values]:
    """The task's module, built under `manual_seed(seed)`, and its parameters and buffers by name (tied ones once)."""
    torch.manual_seed(seed)
    model = task.model()
    if precision == "fp64":
        model = model.double()
    return model, values_of(model)


def values_of(model: Any) -> Values:
    """Parameters and buffers of a module under its own names."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def compiled(
    graph: Graph, program: Program, role: Role, device: str, breathing: bool = False
) -> tuple[dict[str, Code], set[Ref]]:
    """The code of every segment that a role runs, and the values that any of it reads."""
    wanted = {i.act.segment for i in role.instructions if hasattr(i.act, "segment")}
    code: dict[str, Code] = {}
    reads: set[Ref] = set()
    for batch in {program.segment[name].batch for name in wanted}:
        concrete = substitute(graph, batch)
        last = last_reads(concrete)
        reads |= last.keys()
        for name in wanted:
            segment = program.segment[name]
            if segment.batch == batch:
                code[name] = compile_segment(concrete, segment.start, segment.stop, device, last, breathing)
    return code, reads


def make_rank(
    task: Task, graph: Graph, program: Program, rank: int, state: State, transport: Transport, *, seed: int,
    first_step: int = 0, device: str = "cpu", precision: str = "", keyed: bool = False, cores: float = 0.0,
    code: tuple[dict[str, Code], set[Ref]] | None = None,
) -> Rank:  # fmt: skip
    """A rank that is ready to be driven from step `first_step` on; `cores` is its processor quota (0: none)."""
    role = program.role_of[rank]
    segments, reads = code or compiled(graph, program, role, device, 0 < cores < 1)
    return Rank(
        graph, program, role, rank, state, transport, Feed(task, seed), segments, reads, device,
        DTYPES[precision] if precision else None, first_step, seed if keyed else None, Pace(cores),
    )  # fmt: skip


def train_in_process(
    task: Task, graph: Graph, plan: Plan, cluster: Cluster, steps: int, *, seed: int = 0, order: int = 0,
    slow: dict[int, float] | None = None, precision: str = "", keyed: bool = False,
    values: Mapping[str, torch.Tensor] | None = None,
) -> tuple[dict[int, State], dict[int, float]]:  # fmt: skip
    """Train `steps` steps with every rank in this thread, lanes advanced in the order that `order` seeds.

    Returns the state of each rank and the loss of each step. The task's model is built under `seed` unless `values`
    gives its parameters and buffers.
    """
    start = dict(values) if values is not None else initial(task, seed, precision)[1]
    states: dict[int, State] = {}
    losses: dict[int, float] = {}
    step = 0
    for leg in legs(graph, plan, cluster, steps):
        program, hall = leg.program, Hall()
        states = {r: carry_over(graph, program, r, task, start, states.get(r), "cpu") for r in range(program.size)}
        code = {role.name: compiled(graph, program, role, "cpu") for role in program.roles}
        ranks = [
            make_rank(
                task,
                graph,
                program,
                r,
                states[r],
                InProcess(r, hall),
                seed=seed,
                first_step=step,
                precision=precision,
                keyed=keyed,
                code=code[program.role_of[r].name],
            )
            for r in range(program.size)
        ]
        advance(ranks, leg.rounds, order, slow)
        losses |= totals(row for rank in ranks for row in rows_of(rank))
        step += leg.rounds * program.steps
    return states, losses


def carry_over(
    graph: Graph, program: Program, rank: int, task: Task, values: Values, before: State | None, device: str
) -> State:
    """The rank's state for its next Program: fresh, or the one before with the gradient copies that this one needs."""
    role = program.role_of[rank]
    fresh = make_state(graph, program, role, task, values if before is None else {**values, **before.leaves}, device)
    if before is None:
        return fresh
    if before.layout != fresh.layout:
        raise TaskError(
            f"{program.name}: the phases of this plan cut the parameters differently; give them the same buckets"
        )
    return replace(
        fresh,
        optimizer=before.optimizer,
        schedule=before.schedule,
        leaves=before.leaves,
        parameter=before.parameter,
        views=before.views,
    )
