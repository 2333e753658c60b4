"""`collective=auto`: for each message size the all-reduce algorithm that is predicted to be the fastest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from typing import Final

from partita.cluster.cluster import Cluster
from partita.cost.costs import Costs
from partita.cost.datasheet import datasheet_costs
from partita.errors import PlanError
from partita.graph.graph import Graph
from partita.graph.tensor import ITEMSIZE
from partita.lowering.lower import lower_phase
from partita.lowering.samples import sizes_of
from partita.plan.plan import COMPILED, Plan
from partita.plan.sync import Sync
from partita.plan.wire import Codec
from partita.program.instruction import Collective, Instruction
from partita.program.layout import Bucket
from partita.program.program import Lane, Program, Role
from partita.program.space import Kind
from partita.simulator.simulate import step_seconds
from partita.units import Bytes, Seconds
from partita.wire.algorithms import ALGORITHMS, AUTO, BACKEND, STREAMS, all_reduce, hands_whole
from partita.wire.codec import spec_of
from partita.wire.schedule import summed_once

LEAVES: Final = "float32"
# What predictions miss by: a schedule, or a plan, that is ahead by less is not known to be ahead. The errors of two
# plans for one task on one cluster differ by 6 % in the median of 160 pairs (`benchmarks/prediction`).
ALIKE: Final = 1.05


def fastest(plan: Plan, graph: Graph, cluster: Cluster, costs: Costs | None = None) -> Plan:
    """The plan, and the phases before it, with an algorithm in place of `auto` for every message size that it has; by
    data sheets where no costs are given. A plan without `auto` is returned as it is.

    For a codec that chooses entries, one algorithm serves all sizes and is chosen by whole steps: gathered codings cost
    decoding, which the messages alone do not show.
    """
    before = tuple(replace(phase, plan=fastest(phase.plan, graph, cluster, costs)) for phase in plan.before)
    plan = replace(plan, before=before)
    if not any(sync.wire.collective == AUTO for sync in plan.sync):
        return plan
    steps = sizes_of(plan, graph) if any(map(_by_steps, plan.sync)) else ()
    known = costs or datasheet_costs(graph, cluster, steps, compiled=COMPILED in plan.kernels)
    return replace(plan, sync=tuple(_settled(sync, plan, known) for sync in plan.sync))


def _by_steps(sync: Sync) -> bool:
    """Whether it has a codec that chooses entries."""
    return any(spec_of(codec).sparse and codec.where == "end" for codec in sync.wire.codecs)


def _settled(sync: Sync, plan: Plan, costs: Costs) -> Sync:
    if sync.wire.collective != AUTO:
        return sync
    if _by_steps(sync):
        twice = len(sync.wire.codecs) > 1
        names = [name for name in (BACKEND, *STREAMS) if hands_whole(name) or not twice]
        steps = {name: step_seconds(_with(plan, name, costs), costs) for name in names}
        return replace(sync, wire=replace(sync.wire, collective=min(steps, key=lambda name: steps[name])))
    if any(codec.where == "end" and not spec_of(codec).sums for codec in sync.wire.codecs):
        return replace(sync, wire=replace(sync.wire, collective=BACKEND))  # what cannot be added up is gathered
    usual = "ring" if sync.wire.negotiate else BACKEND  # no backend follows an order that is agreed on
    program = _with(plan, usual, costs)
    acts = program.acts(Collective)
    sums = [act for act in acts if act.kind is Kind.ALL_REDUCE and len(act.groups[0]) > 1]
    sizes = {program.payload(act): (len(act.groups[0]), act.codec) for act in sums}
    best = ((size, choice(timed(size, *whom, costs))) for size, whom in sorted(sizes.items()))
    found = [(size, usual if one == BACKEND else one) for size, one in best]
    turns = [one for one, after in pairwise(found) if one[1] != after[1]]
    last = found[-1][1] if found else usual
    return replace(sync, wire=replace(sync.wire, collective=last, by_size=tuple(turns)))


def _with(plan: Plan, algorithm: str, costs: Costs) -> Program:
    """The plan's last phase with one algorithm."""
    syncs = tuple(replace(one, wire=replace(one.wire, collective=algorithm)) for one in plan.sync)
    return lower_phase(costs.graph, replace(plan, sync=syncs, before=()), costs.cluster)


def timed(size: Bytes, ranks: int, codec: Codec | None, costs: Costs) -> Iterator[tuple[Seconds, str]]:
    """(predicted seconds, algorithm) of an all-reduce of `size` bytes among the first `ranks` devices, each
    algorithm by itself: what it was timed to take where the costs have that of all, otherwise by the clock."""
    names = candidates(ranks, coded=codec is not None)
    known = costs.wiring.scheduled(size) if codec is None and ranks == costs.cluster.size else {}
    if known.keys() >= set(names):
        yield from ((known[name], name) for name in names)
        return
    bucket = Bucket("b0", LEAVES, max(size // ITEMSIZE[LEAVES], 1), ())
    group = tuple(range(ranks))
    for algorithm in names:
        act = Collective(Kind.ALL_REDUCE, bucket.name, (group,), algorithm=algorithm, codec=codec)
        role = Role("all", group, (Instruction("A", act, "compute"),), (Lane("compute"),))
        yield step_seconds(Program("all-reduce", (role,), (), (bucket,), 1), costs), algorithm


def choice(found: Iterable[tuple[Seconds, str]]) -> str:
    """The algorithm to take: the first of those that are as fast as the fastest, within the error of predictions."""
    times = list(found)
    least = min(seconds for seconds, _ in times)
    return next(name for seconds, name in times if seconds <= ALIKE * least)


def candidates(ranks: int, *, coded: bool = False) -> list[str]:
    """The algorithms for `ranks` ranks. The backend's own comes first; it cannot encode. Nor do those hops whose ranks
    add up each for itself."""
    names = [*ALGORITHMS, *(f"hierarchical({k})" for k in range(2, ranks) if ranks % k == 0)]
    found = [] if coded else [BACKEND]
    for name in names:
        with suppress(PlanError):
            made = all_reduce(name, ranks)
            if not coded or summed_once(made):
                found.append(name)
    return found
