"""Peaks of a plan's ranks by the event clock, on data sheets' times and on times that are far from them.

What lies on a rank at once follows from when messages come and go, so the order of the text does not tell it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from partita.cluster.cluster import Cluster
from partita.cost.costs import Costs
from partita.cost.datasheet import datasheet_costs
from partita.cost.sheets import paced
from partita.graph.batch import of_minibatch
from partita.graph.graph import Graph
from partita.lowering.lower import lower
from partita.lowering.precision import format_asked
from partita.plan.memory import Shard
from partita.plan.plan import Plan
from partita.plan.schedule import Order
from partita.program.instruction import Load
from partita.program.program import Program, Role
from partita.program.timeline import PURPOSES, Timeline
from partita.simulator.simulate import peaks, setting_of, simulate
from partita.units import Bytes

# The largest miss of predicted live bytes against torch's allocator on models without convolutions, over all recipes
# that run on four devices (`tests/cost/test_memory.py` holds predictions to it). What a device needs besides tensors
# (a CUDA context, what the allocator keeps for later) is not in it.
ERROR: Final = 0.05
PACES: Final = (0.2, 5.0)  # of computing beside messages: by how much data sheets may misjudge one of the two
# Lengths of a pipe after which no more microbatches come under way, where weights' gradients are put off, for each
# chunk where they go round in it, and where owners get sums of each (two buckets are packed while a third is made).
AHEAD: Final = 2
PUT_OFF: Final = 3
ROUND: Final = 4
PACKED: Final = 3
CLOSE: Final = 0.7  # of the fullest rank's peak: whose peaks are looked at on other times


@dataclass(frozen=True)
class Peaks:
    """Of each rank `used` by data sheets' times, `parts` what that is for, `most` on any of the other times, which are
    looked at where the plan surely fits by the first."""

    used: tuple[Bytes, ...]
    parts: tuple[dict[str, Bytes], ...]
    most: tuple[Bytes, ...]


def peaks_of(plan: Plan, graph: Graph, cluster: Cluster) -> Peaks:
    """The peaks of a plan, of all its phases, never below those of `simulate` on data sheets' costs."""
    less, smaller, cut = shortened(plan, graph)
    found: Peaks | None = None
    for stretch in lower(smaller, less, cluster):
        program = stretch.program
        each = _of_program(program, smaller, _costs(program, stretch.plan, smaller, cluster), cut)
        found = each if found is None else _larger(found, each)
    assert found is not None
    return found


def shortened(plan: Plan, graph: Graph) -> tuple[Plan, Graph, int]:
    """The plan and the step with fewer microbatches of the same size, and by how many: where a backward pass follows
    each forward pass, no more are under way at once than the pipe is long, and all that more of them add are samples
    that were loaded ahead. Not where weights are frozen: the first stages may wait for nothing on the way back."""
    schedule, batch = plan.schedule, graph.minibatch
    m, data = schedule.microbatches, plan.mesh.length("data") if plan.stages else plan.mesh.size
    ahead = PUT_OFF if schedule.order is Order.ZERO_BUBBLE else AHEAD
    ahead = max(ahead, PACKED) if plan.memory.shard in (Shard.GRADIENTS, Shard.PARAMETERS) else ahead
    enough = (ahead if schedule.chunks == 1 else ROUND * schedule.chunks) * max(plan.mesh.length("pipe"), 1)
    frozen = len(graph.trainable) < len(graph.parameters)
    dealt, uneven = any(stage.ranks for stage in plan.stages), batch % (data * m) != 0
    if schedule.order is Order.FILL_DRAIN or m <= enough or dealt or uneven or frozen or plan.before:
        return plan, graph, 0
    fewer = replace(plan, schedule=replace(schedule, microbatches=enough))
    return fewer, of_minibatch(graph, batch // m * enough), m - enough


def _costs(program: Program, plan: Plan, graph: Graph, cluster: Cluster) -> Costs:
    sizes = tuple(sorted({segment.batch for segment in program.segments}))
    short = format_asked(plan.memory)
    return datasheet_costs(graph, cluster, sizes, precisions=(short,) if short else ())


def _of_program(program: Program, graph: Graph, costs: Costs, cut: int) -> Peaks:
    setting, devices = setting_of(program, costs), costs.cluster.devices
    timeline = simulate(program, costs, setting=setting)
    loaded = {rank: cut * _samples(program, graph, role) for role in program.roles for rank in role.ranks}
    used = tuple(peak + loaded[rank] for rank, peak in enumerate(timeline.memory))
    most = list(used)
    if all((1 + ERROR) * peak <= device.memory for peak, device in zip(used, devices, strict=False)):
        fullest = max(used)
        close = {role.name for role in program.roles if used[role.ranks[0]] > CLOSE * fullest}
        paces = [paced(costs, factor) for factor in PACES]
        found = peaks(setting, paces, close)
        for role in (role for role in program.roles if role.name in close):
            for rank in role.ranks:
                most[rank] = max(most[rank], *(each[role.name] + loaded[rank] for each in found))
    parts = tuple(_parts(timeline, rank, more) for rank, more in sorted(loaded.items()))
    return Peaks(used, parts, tuple(most))


def _samples(program: Program, graph: Graph, role: Role) -> Bytes:
    """Bytes that a microbatch's samples take on a rank of the role, which loads all of the next step's ahead."""
    found = {act.stage: act.count for act in role.acts(Load) if act.fetch}
    return sum(_inputs(program.graph_of(stage, graph), stage, count) for stage, count in found.items())


def _inputs(graph: Graph, stage: int, count: int) -> Bytes:
    suffix = f">{stage}" if stage >= 0 else ""
    return sum(t.size(count) for name, t in graph.inputs if name.startswith("input.") and name.endswith(suffix))


def _parts(timeline: Timeline, rank: int, loaded: Bytes) -> dict[str, Bytes]:
    fullest = max(timeline.memory_parts[rank], key=sum)
    found = dict(zip(PURPOSES, fullest, strict=True))
    return found | {"activations": found["activations"] + loaded}


def _larger(one: Peaks, other: Peaks) -> Peaks:
    """Rank by rank; ranks are the same in all phases."""
    fuller = [b > a for a, b in zip(one.used, other.used, strict=True)]
    return Peaks(
        tuple(map(max, one.used, other.used)),
        tuple(b if more else a for a, b, more in zip(one.parts, other.parts, fuller, strict=True)),
        tuple(map(max, one.most, other.most)),
    )
