"""What no point takes less than, against the event clock; and the search for what could be better still."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain, product

import numpy as np
import pytest

from partita.cluster.cluster import Cluster, Device, Group, Link
from partita.cost.costs import Costs, Host
from partita.cost.datasheet import datasheet_costs
from partita.cost.touch import Touch
from partita.graph.graph import Graph, Optimizer
from partita.graph.tensor import Tensor
from partita.lowering.schedules import ROWS, under_way
from partita.plan.memory import Recompute
from partita.plan.schedule import Order
from partita.searches import gathering
from partita.searches.auto import auto
from partita.searches.link_speeds import LinkSpeeds
from partita.searches.lower_bounds import LowerBounds
from partita.searches.rough_bounds import rough_bounds
from partita.searches.sections import Sections
from partita.searches.shortlist import shortlist_of
from partita.searches.space import Space, space_of
from partita.searches.stage_costs import StageCosts
from partita.searches.stage_cuts import cuts_of
from partita.simulator.simulate import simulate
from tests.priced import batches_of
from tests.programs import program_by
from tests.searches.accelerators import deep
from tests.small import layers, tied


def machines(bandwidths: tuple[float, ...], memory: int = 0, speeds: tuple[float, ...] = ()) -> Cluster:
    """Slow accelerators, one a link: what is computed takes microseconds, not launches alone."""
    devices = tuple(
        Device("gpu", cores=1.0, speed=speed, flops=(("fp32", 1e6),), memory=memory, memory_bandwidth=1e7)
        for speed in speeds or (1.0,) * len(bandwidths)
    )
    return Cluster("slow", Group("root", devices, tuple(Link(width, 1e-5) for width in bandwidths)))


def space_on(graph: Graph, cluster: Cluster) -> Space:
    costs = datasheet_costs(graph, cluster, (1, graph.global_batch))
    cuts = cuts_of(graph, cluster, costs, 16)
    return space_of(graph, cluster, cuts.most, graph.trained_bytes)


def each(space: Space) -> Iterator[Space]:
    """Every point as a space of its own."""
    return (space.some([i]) for i in range(len(space)))


def clocked(graph: Graph, cluster: Cluster, text: str, measured: Costs | None = None) -> tuple[float, int]:
    program = program_by(text, graph, cluster)
    costs = datasheet_costs(graph, cluster, batches_of(program), measured=measured)
    timeline = simulate(program, costs)
    return timeline.step_seconds, max(timeline.memory)


def nodes(inside: float, between: float) -> Cluster:
    """Four nodes of two such devices, which share their node's port."""
    pair = machines((inside,) * 2).root
    return Cluster("nodes", Group("root", (pair,) * 4, (Link(between, 1e-5),) * 4))


def adam_of(graph: Graph, dtype: str) -> Graph:
    """The step in another dtype, which Adam's state has too."""

    def of(tensor: Tensor) -> Tensor:
        return replace(tensor, dtype=dtype)

    return replace(
        graph, inputs=tuple((name, of(tensor)) for name, tensor in graph.inputs),
        operators=tuple(replace(o, outputs=tuple(out and of(out) for out in o.outputs)) for o in graph.operators),
        parameters=tuple(replace(p, tensor=of(p.tensor)) for p in graph.parameters),
        constants=tuple(replace(constant, tensor=of(constant.tensor)) for constant in graph.constants),
        optimizer=Optimizer("Adam", (("exp_avg", 1.0, dtype), ("exp_avg_sq", 1.0, dtype))),
    )  # fmt: skip


def bursting(cluster: Cluster, burst: int) -> Cluster:
    """The cluster where each link lets so many bytes pass at once after an idle time."""
    return cluster.rewired(lambda link: replace(link, burst=burst))


UNLIKE = (1e5, 1e6, 1e5, 1e6)


def cards(sums: float, inside: float = 1e10) -> Cluster:
    """Two nodes of two slow accelerators, whose switches may sum, known by data sheets alone."""
    some = machines((inside,) * 2).root
    devices = tuple(replace(device, backend="cuda") for device in some.devices())
    pair = replace(some, members=devices, sums=sums)
    return Cluster("cards", Group("root", (pair,) * 2, (Link(1e9, 2e-6),) * 2))


def unlike_cards() -> Cluster:
    """Two nodes of two such accelerators: the switch of one sums, the other one's is slow."""
    one, other = cards(0.85).root.members[0], cards(0.0, 1e5).root.members[0]
    return Cluster(
        "unlike cards", Group("root", (one, replace(other, name="slow")), (Link(1e9, 2e-6), Link(1e6, 1e-3)))
    )


def launched_cards() -> Cluster:
    """Accelerators that wait for their hosts, half of them slower ones."""
    quick = Device("quick", "cuda", flops=(("fp32", 1e13),), memory_bandwidth=1e12)
    slow = replace(quick, speed=0.5)
    return Cluster("launched", Group("root", (quick, slow, slow, quick), (Link(1e9, 2e-6),) * 4))


CLUSTERS = {
    "slow wires": machines((1e4,) * 4), "wires with bursts": bursting(machines((1e4,) * 4), 300),
    "nodes with bursts": bursting(nodes(1e6, 1e5), 400),
    "fast wires": machines((1e8,) * 4), "unlike wires": machines(UNLIKE),
    "a straggler": machines((1e6,) * 4, speeds=(1.0, 1.0, 0.5, 1.0)),
    "nodes": nodes(1e6, 1e6), "narrow nodes": nodes(1e6, 1e5), "cards": cards(0.0),
    "cards that sum": cards(0.85), "cards on slow links": cards(0.85, 1e5), "unlike cards": unlike_cards(),
    "cards that wait for hosts": launched_cards(),
}  # fmt: skip


def measured_on(graph: Graph, cluster: Cluster) -> Costs:
    """Costs that no data sheet has: additions quicker than copies, pieces quicker to update than buckets, messages held
    up by computing and computing by messages, and shared cores."""
    sheet = datasheet_costs(graph, cluster, (1, 4))
    held = ((1, 4.0), (2**20, 2.0))
    wiring = replace(sheet.wiring, overlap=held, message_overlap=held, disturbance=1e-9, value=1e-6)
    quick = Touch(0.0, sheet.copy.element / 4)
    hosts = (Host(tuple(range(cluster.size)), cluster.size / 2),)
    return replace(sheet, source="measured", wiring=wiring, add=quick, update_unpacked=quick, hosts=hosts, _sums={})


@pytest.mark.parametrize("points", [12, pytest.param(60, marks=pytest.mark.slow)])
@pytest.mark.parametrize("calibrated", [False, True])
@pytest.mark.parametrize("name", CLUSTERS)
def test_no_point_is_below_its_floor(name: str, calibrated: bool, points: int) -> None:
    """Neither the rough bound nor the one of its own cuts nor the closer one, in seconds and in bytes, on drawn points
    of every kind and more with gathered weights on stages, without stages, and with stages in turns; and where wires
    are fast, the second is not far."""
    graph, cluster = deep(16), CLUSTERS[name]
    near = nearness(graph, cluster, points, points // 3, measured_on(graph, cluster) if calibrated else None)
    if name == "fast wires" and not calibrated:
        assert (np.median(near, axis=0) > (0.6, 0.7)).all()


@pytest.mark.parametrize("name", ["unlike wires", "narrow nodes", "cards on slow links"])
def test_packs_of_divided_gradients_wait_for_room(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With many buckets a stage, packs wait for scatters of those before them: the closer bound counts that, and is not
    above the clock."""
    graph, cluster = deep(16), CLUSTERS[name]
    space, draw = space_on(graph, cluster), np.random.default_rng(3)
    often = (space.column("microbatches") > 1) & (space.column("pipe") > 1) & (space.column("data") > 1)
    some = draw.choice(np.flatnonzero((space.column("shard") == 2) & often), 8, replace=False)
    rows = replace(space.some(some), buckets=np.full(len(some), graph.trained_bytes // 24))
    found = [LowerBounds(graph, cluster).steps.seconds(one, closer=True)[0] for one in each(rows)]
    assert all(s <= clocked(graph, cluster, rows.call(i))[0] * (1 + 1e-9) for i, s in enumerate(found))
    monkeypatch.setattr(gathering, "ROOM", 24)
    roomy = [LowerBounds(graph, cluster).steps.seconds(one, closer=True)[0] for one in each(rows)]
    assert np.all(np.less_equal(roomy, found))
    assert np.less(roomy, found).sum() > len(rows) // 2


FORGETS: dict[str, tuple[type, str, object]] = {
    "packs before the last pass ends": (gathering.Gathers, "early", lambda *_: 0),
    "messages round the pipe": (LinkSpeeds, "rounds", lambda speeds, n: (speeds.hops(n)[0] * 1e6, speeds.hops(n)[1])),
    "packs of a tied weight": (StageCosts, "tied", lambda _, pipes: (pipes.state * 0, pipes.state * 0)),
    "copies for the next block": (Sections, "for_next", property(lambda one: one.in_any_cut & False)),
}


@pytest.mark.parametrize("what", FORGETS)
def test_what_the_closer_bound_knows_of_passes_in_their_order(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of some points it is lower without that, of none it is above the clock with it."""
    graph, cluster = tied(deep(16)), CLUSTERS["nodes"]
    space, draw = space_on(graph, cluster), np.random.default_rng(7)
    chunked = space.column("schedule") >= 4
    kinds = [space.column(name) == value for name, value in (("shard", 0), ("shard", 1), ("recompute", 1))]
    drawn = [draw.choice(np.flatnonzero(chunked & kind & (space.column("data") > 1)), 6).tolist() for kind in kinds]
    rows = space.some(list(chain(*drawn)))
    rows.buckets[1::2] = graph.trained_bytes // 24
    found = [LowerBounds(graph, cluster).steps.seconds(one, closer=True)[0] for one in each(rows)]
    assert all(s <= clocked(graph, cluster, rows.call(i))[0] * (1 + 1e-9) for i, s in enumerate(found))
    monkeypatch.setattr(*FORGETS[what])
    less = [LowerBounds(graph, cluster).steps.seconds(one, closer=True)[0] for one in each(rows)]
    assert np.less_equal(less, np.multiply(found, 1 + 1e-12)).all()
    assert np.less(less, np.multiply(found, 1 - 1e-9)).any()


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_floors_are_those_of_the_dtype(dtype: str) -> None:
    """Adam's state is twice the bytes of parameters, however many bytes these have."""
    near = nearness(adam_of(deep(16), dtype), CLUSTERS["fast wires"], 10, 5)
    assert np.median(near, axis=0)[1] > 0.7


def test_no_point_of_a_model_with_a_tied_weight_is_below_its_floor() -> None:
    nearness(tied(deep(16)), CLUSTERS["nodes"], 8, 6)


@pytest.mark.parametrize("name", ["slow wires", "fast wires"])
def test_no_point_of_unlike_layers_is_below_its_floor(name: str) -> None:
    """Where nobody waits for gradients but their own rank, a pass is not cut for what is packed before it ends."""
    graph, cluster = replace(layers(8, growth=6), global_batch=16, optimizer=deep(16).optimizer), CLUSTERS[name]
    space, draw = space_on(graph, cluster), np.random.default_rng(1)
    lone = (space.column("data") == 1) & (space.column("pipe") > 1) & (space.column("shard") == 0)
    some = draw.choice(np.flatnonzero(lone & (space.column("recompute") != 2)), 20, replace=False)
    rows = replace(space.some(some), buckets=np.full(len(some), graph.trained_bytes // 24))
    for i, one in enumerate(each(rows)):
        closer = LowerBounds(graph, cluster).steps.seconds(one, closer=True)[0]
        assert closer <= clocked(graph, cluster, rows.call(i))[0] * (1 + 1e-9), rows.call(i)


def test_weights_of_a_later_chunk_come_beside_passes_of_an_earlier_one() -> None:
    """Where the first place has most to sum up, over slow links, and the last gather of a round goes on in the next."""
    graph = replace(layers(9, growth=40), global_batch=24, optimizer=deep(16).optimizer)
    cluster = machines((4e4,) * 6, speeds=(1.0,) * 3 + (0.3,) * 3)
    space = space_on(graph, cluster)
    wanted = {"data": 3, "pipe": 2, "schedule": 4, "microbatches": 2, "shard": 1, "recompute": 0}
    kinds = [space.column(name) == value for name, value in wanted.items()]
    rows = space.some(np.flatnonzero(np.logical_and.reduce(kinds))[:1])
    rows.buckets[:] = graph.trained_bytes // 24
    seconds = clocked(graph, cluster, rows.call(0))[0]
    assert 0.9 * seconds < LowerBounds(graph, cluster).steps.seconds(rows)[0] <= seconds * (1 + 1e-9)


def test_what_adds_up_a_tied_weights_gradient_is_in_no_block() -> None:
    """A stage with one of its parts adds nothing."""
    sections = Sections(tied(deep(16), 2, 5), Recompute.NONE, True)
    index = sections.step.index
    assert not sections.in_any_cut[index["s2"]]
    assert sections.in_any_cut[index["w2"]]
    assert sections.in_any_cut[index["w5"]]


def nearness(
    graph: Graph, cluster: Cluster, some: int, more: int, measured: Costs | None = None
) -> list[tuple[float, float]]:
    """The parts that the bounds' seconds and bytes are of the clock's, at `some` points and `more` of three kinds each,
    none of which is below its bounds."""
    space, bounds, draw = space_on(graph, cluster), LowerBounds(graph, cluster, measured), np.random.default_rng(5)
    rough, state = rough_bounds(space, bounds.places)
    bound, fullest = bounds.steps.seconds(space), bounds.peaks.memory(space)
    near = []
    gathering, alone = (space.column("shard") == 3) & (space.column("pipe") > 1), space.column("pipe") == 1
    in_turns = (space.column("schedule") >= 4) & (space.column("data") > 1)
    drawn = [draw.choice(np.flatnonzero(kind), more).tolist() for kind in (gathering, alone, in_turns)]
    for i in (*draw.choice(len(space), some, replace=False).tolist(), *chain(*drawn)):
        seconds, memory = clocked(graph, cluster, space.call(i), measured)
        one = space.some([i])
        closer, held = bounds.steps.seconds(one, closer=True)[0], bounds.peaks.memory(one, closer=True)[0]
        assert max(bound[i], rough[i], closer) <= seconds * (1 + 1e-9), space.call(i)
        assert max(fullest[i], state[i]) <= held <= memory, space.call(i)
        near.append((bound[i] / seconds, held / memory))
    return near


@pytest.mark.parametrize("made", [deep, lambda batch: tied(deep(batch))], ids=["own", "tied"])
def test_points_whose_buckets_are_never_full_are_alike(made: Callable[[int], Graph]) -> None:
    """And alike ones are lowered to the same; a weight that stages share has a bucket of its own."""
    graph, cluster = made(16), CLUSTERS["fast wires"]
    space, bounds, sizes = space_on(graph, cluster), LowerBounds(graph, cluster), (32, 64, 80, 112, 128, 144, 1024)
    some = np.flatnonzero((space.column("pipe") > 1) & (space.column("data") > 1))
    for i in np.random.default_rng(3).choice(some, 8, replace=False).tolist():
        rows = replace(space.some([i] * len(sizes)), buckets=np.array(sizes))
        buckets = [program_by(rows.call(k), graph, cluster).buckets for k in range(len(sizes))]
        kinds = [bounds.lowered_alike(one) for one in each(rows)]
        assert all((a == b) <= (x == y) for (a, x), (b, y) in product(zip(kinds, buckets, strict=True), repeat=2))
        most = max(bucket.size for bucket in buckets[-1])
        assert len({kind for kind, size in zip(kinds, sizes, strict=True) if size >= most}) == 1


@pytest.mark.parametrize("tight", [False, True])
def test_what_is_left_out_is_not_better(tight: bool) -> None:
    """The best of all points by the clock is found, also where three of four do not fit."""
    graph, roomy = deep(4), machines((1e6, 1e6))
    space = space_on(graph, roomy)
    every = [clocked(graph, roomy, space.call(i)) for i in range(len(space))]
    memory = int(np.quantile([peak for _, peak in every], 0.25)) if tight else 0
    cluster = machines((1e6, 1e6), memory)
    best = min(seconds for seconds, peak in every if not memory or peak <= memory)
    found = auto(shortlist_of(graph, cluster), datasheet_costs(graph, cluster, (1, 2, 4)))
    assert found.candidates[0].timeline.step_seconds == pytest.approx(best, rel=1e-9)
    assert found.gap == pytest.approx(0.0, abs=1e-9)
    assert found.clocked < len(space)


def test_what_is_under_way_is_what_rows_say() -> None:
    orders = [(order, chunks) for order in ROWS for chunks in ((2, 3) if order is Order.INTERLEAVED else (1,))]
    for order, chunks in orders:
        for ranks, laps in ((2, 1), (3, 1), (4, 2), (3, 5)):
            m = ranks * laps
            for rank in range(ranks):
                row = ROWS[order](ranks, rank, m, chunks)
                first = next(k for k, one in enumerate(row) if one.kind == "B")
                went = tuple(sum(one.chunk == c for one in row[:first]) for c in range(chunks))
                assert under_way(order, ranks, rank, m, chunks) == went
