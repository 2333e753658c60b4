"""Moving one rank of each kind tells the same times as moving all of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.cluster.cluster import Cluster, Device, Group, Link
from partita.cost.costs import Costs
from partita.cost.prices import Prices
from partita.cost.touch import Touch
from partita.cost.wiring import Wiring
from partita.program.instruction import After, Collective, Instruction, Receive, Send, Update
from partita.program.layout import Bucket
from partita.program.program import Lane, Policy, Program, Role
from partita.program.space import Kind
from partita.recipes.catalogue import RECIPES
from partita.simulator.activities import Activities
from partita.simulator.clock import advance
from partita.simulator.expand import Layout, expand
from partita.simulator.ports import Ports
from partita.simulator.symmetry import Symmetry, no_symmetry, symmetry_of, without_idle_ports
from partita.simulator.transfers import transfers_of, unrolled
from tests.priced import machines_for, priced
from tests.programs import program_by
from tests.small import layers, two_layers

ROUNDS = 3
WHOLE, HALF = Device(cores=1.0), Device(cores=0.5)

MANY = layers(12)


def flat(*devices: Device, link: Link | None = None) -> Cluster:
    return Cluster("flat", Group("root", devices, (link or Link(1e4, 1e-4),) * len(devices)))


def nodes(*rows: tuple[Device, ...], within: Link | None = None, between: Link | None = None) -> Cluster:
    """Rows of devices, each at a switch of its own."""
    groups = tuple(Group(f"node-{i}", row, (within or Link(3e4, 1e-5),) * len(row)) for i, row in enumerate(rows))
    return Cluster("nodes", Group("root", groups, (between or Link(1e4, 1e-4),) * len(rows)))


CLUSTERS = {
    "equal": flat(*(WHOLE,) * 6),
    "quota": flat(*(HALF,) * 6, link=Link(1e4, 1e-4, burst=500)),
    "straggler": flat(*(WHOLE,) * 5, replace(WHOLE, speed=0.5)),
    "nodes": nodes(*((WHOLE,) * 3,) * 2),
    "bursts": nodes(*((HALF,) * 2,) * 3, between=Link(1e4, 1e-4, burst=900, duplex=False)),
    "uneven": nodes((WHOLE,) * 4, (HALF,) * 2),
}


def times(program: Program, costs: Costs, *, alike: bool, every: bool) -> tuple[dict[int, np.ndarray], Symmetry]:
    """By rank start and end of its instructions in all rounds; `alike` moves one of each kind; `every` port counts."""
    ports = Ports(costs.cluster, costs.wiring)
    transfers = transfers_of(program, costs, ports)
    transfers = transfers if every else without_idle_ports(transfers, ports)
    symmetry = symmetry_of(program, costs, ports, transfers) if alike else no_symmetry(program, ports, transfers)
    layout, activities = expand(program, Prices(costs, program), ports, transfers, symmetry, ROUNDS)
    found = np.array(advance(activities, ports.resources))
    told = {}
    for role in program.roles:
        at, kind = layout.at(role), layout.kind(role)
        told |= {rank: found[:, at[:, :, k]] for rank, k in zip(role.ranks, kind, strict=True)}
    return told, symmetry


def agree(program: Program, costs: Costs, *, every: bool = False) -> Symmetry:
    (one, symmetry), (all_, _) = times(program, costs, alike=True, every=False), times(
        program, costs, alike=False, every=every
    )  # fmt: skip
    assert one.keys() == all_.keys()
    for rank in one:
        np.testing.assert_allclose(one[rank], all_[rank], rtol=1e-9, atol=1e-12)
    return symmetry


def costs_of(program: Program, cluster: Cluster) -> Costs:
    batches = sorted({segment.batch for segment in program.segments})
    touch = Touch(2e-5, 1e-6)
    graph = MANY if program.name == "interleaved" else two_layers()
    return priced(graph, cluster, batches, latency=1e-4, copy=touch, update=touch, sent=3e-6)


@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize("text", [*RECIPES, "ddp(bucket_bytes=24)", "ps_sync(servers=2,own=false,bucket_bytes=24)"])
def test_recipes(text: str, cluster: str) -> None:
    graph = MANY if text == "interleaved" else two_layers()
    graph = replace(graph, global_batch=12)
    machines = machines_for(text, graph, CLUSTERS[cluster])
    if "own=false" in text:
        machines = flat(*machines.devices, WHOLE, WHOLE)
    program = program_by(text, graph, machines)
    agree(program, costs_of(program, machines), every=True)


@pytest.mark.parametrize(
    ("cluster", "kinds"), [("equal", 1), ("quota", 1), ("straggler", 2), ("nodes", 1), ("bursts", 1), ("uneven", 2)]
)
def test_a_collective_leaves_as_many_kinds_as_there_are_processors(cluster: str, kinds: int) -> None:
    """Also where a ring's parts are of different sizes: its fullest port alone holds it back."""
    graph, machines = replace(two_layers(), global_batch=12), CLUSTERS[cluster]
    program = program_by("ddp(bucket_bytes=24)", graph, machines)
    assert len(np.unique(agree(program, costs_of(program, machines)).rank)) == kinds


BUCKETS = tuple(Bucket(f"b{i}", "float32", elements, ()) for i, elements in enumerate((30, 70, 101)))


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """One role; each instruction updates, meets in groups, or sends along a permutation to who receives in a lane of
    its own; all wait for some earlier one, or for one of the round before."""
    size = draw(st.sampled_from([4, 6]))
    body: list[Instruction] = []
    for i in range(draw(st.integers(1, 6))):
        bucket = draw(st.sampled_from(BUCKETS)).name
        waits = [i.name for i in body if draw(st.booleans())]
        after = tuple(After(name, draw(st.integers(0, 1))) for name in waits)
        lane = draw(st.sampled_from(["compute", "wire"]))
        match draw(st.sampled_from(["update", "meet", "shift", "permute"])):
            case "update":
                body.append(Instruction(f"U{i}", Update(bucket), lane, after))
            case "meet":
                width = draw(st.sampled_from([w for w in (2, 3, size) if size % w == 0]))
                ranks = np.arange(size).reshape(-1, width)
                ranks = ranks if draw(st.booleans()) else np.arange(size).reshape(width, -1).T
                groups = tuple(tuple(row) for row in ranks.tolist())
                body.append(Instruction(f"A{i}", Collective(Kind.ALL_REDUCE, bucket, groups), lane, after))
            case way:
                step = draw(st.integers(1, size - 1))
                to = [(r + step) % size for r in range(size)] if way == "shift" else draw(st.permutations(range(size)))
                source = tuple(to.index(r) for r in range(size))
                body.append(Instruction(f"S{i}", Send(bucket, tuple(to), f"k{i}"), lane, after))
                body.append(Instruction(f"R{i}", Receive(bucket, source, f"k{i}"), f"in{i}"))
    lanes = tuple(Lane(name) for name in sorted({i.lane for i in body}))
    return Program("drawn", (Role("all", tuple(range(size)), tuple(body), lanes),), (), BUCKETS, size)


MACHINES = {4: [flat(*(WHOLE,) * 4), nodes(*((HALF,) * 2,) * 2)], 6: [*CLUSTERS.values()]}


@given(programs(), st.data())
@settings(max_examples=100, deadline=None)
def test_drawn_programs(program: Program, data: st.DataObject) -> None:
    agree(program, costs_of(program, data.draw(st.sampled_from(MACHINES[program.size]))))


def test_a_ring_of_equals_is_one_rank_that_sends_to_itself() -> None:
    """Its processor sends and receives at once, two users where there was one message each."""
    to, source = tuple((r + 1) % 6 for r in range(6)), tuple((r - 1) % 6 for r in range(6))
    body = (
        Instruction("S", Send("b2", to, "k"), "out"),
        Instruction("R", Receive("b2", source, "k"), "in"),
        Instruction("U", Update("b2"), "compute"),
    )
    program = Program("ring", (Role("all", tuple(range(6)), body, (Lane("out"), Lane("in"), Lane("compute"))),),
                      (), BUCKETS, 6)  # fmt: skip
    assert not agree(program, costs_of(program, CLUSTERS["equal"])).rank.any()
    shared = agree(program, costs_of(program, CLUSTERS["nodes"]))
    assert len(np.unique(shared.rank)) == 3


def test_where_the_first_come_wins_all_are_moved() -> None:
    graph, machines = replace(two_layers(), global_batch=12), CLUSTERS["equal"]
    program = program_by("ddp", graph, machines)
    costs, ports = costs_of(program, machines), Ports(machines, Wiring(efficiency=1.0))
    lanes = tuple(replace(lane, policy=Policy.ARRIVAL) for lane in program.roles[0].lanes)
    chosen = replace(program, roles=(replace(program.roles[0], lanes=lanes),))
    transfers = transfers_of(chosen, costs, ports)
    assert len(np.unique(symmetry_of(chosen, costs, ports, transfers).rank)) == 6
    agree(chosen, costs)


def size_of(found: tuple[Layout, Activities]) -> int:
    return found[1].size


def test_a_thousand_ranks_take_as_many_activities_as_four() -> None:
    graph, sizes = replace(two_layers(), global_batch=1024), []
    for size in (4, 1024):
        machines = flat(*(WHOLE,) * size)
        program = program_by("ddp(bucket_bytes=24)", graph, machines)
        costs, ports = costs_of(program, machines), Ports(machines, Wiring(efficiency=1.0))
        transfers = without_idle_ports(transfers_of(program, costs, ports), ports)
        symmetry = symmetry_of(program, costs, ports, transfers)
        sizes.append(size_of(expand(program, Prices(costs, program), ports, transfers, symmetry, ROUNDS)))
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize(
    "text", ["gpipe(stages=3", "interleaved(stages=2,chunks=2", "one_f_one_b(stages=2,data=3,shard=parameters"]
)
def test_microbatches_are_told_once(text: str) -> None:
    """Twice as many do not make one transfer more, and each of them is there when they are unrolled."""
    graph, machines, told = replace(MANY, global_batch=24), CLUSTERS["equal"], []
    for m in (4, 8):
        program = program_by(f"{text},microbatches={m})", graph, machines)
        costs = costs_of(program, machines)
        transfers = transfers_of(program, costs, Ports(machines, costs.wiring))
        taking = [role for role, i in program.instructions() if isinstance(i.act, Collective | Send | Receive)]
        assert len(unrolled(transfers).who) == sum(len(role.ranks) for role in taking)
        told.append(len(transfers.latency))
    assert told[0] == told[1]
