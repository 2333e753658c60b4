"""Collectives take longer while their ranks compute, by as much as was measured, and only while they do; and so do
messages at the port of a rank that hears from several and speaks to several."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.cost.costs import Costs, Host
from partita.cost.touch import Touch
from partita.cost.wiring import Circle, Wiring
from partita.graph.graph import Graph
from partita.program.program import Program
from partita.simulator.moves import coded, moves_of
from partita.simulator.progress import covered, slowed
from partita.simulator.simulate import simulate
from tests.priced import batches_of, priced, whole_cores
from tests.programs import program_by
from tests.small import two_layers

COMPUTE = 10e-3
RING = 2 * 3 / 4 * (4 * 6 + 6 * 2) * 4  # bytes that each of four ranks sends of the whole gradient
ROUNDS = 40  # so many that how the first of them go does not matter


def prepared(text: str, ratio: float, factor: float) -> tuple[Program, Costs]:
    """Ten operators of `COMPUTE` in all, and a ring that takes `ratio` as long, `factor` times that beside them."""
    graph: Graph = two_layers()
    machines = whole_cores(4, RING / (COMPUTE * ratio))
    program = program_by(text, graph, machines)
    costs = priced(graph, machines, batches_of(program), operator=COMPUTE / 10)
    rows = ((10**9, factor),) if factor > 1 else ()
    return program, replace(costs, wiring=replace(costs.wiring, overlap=rows, message_overlap=rows, hop_overlap=rows))


def step(text: str, ratio: float, factor: float) -> float:
    return simulate(*prepared(text, ratio, factor), rounds=ROUNDS).step_seconds


@pytest.mark.parametrize("factor", [1.0, 1.5, 4.0])
@pytest.mark.parametrize("ratio", [0.2, 0.5, 0.9, 1.1, 3.0])
def test_a_pipelined_sum_goes_slower_while_its_ranks_compute(ratio: float, factor: float) -> None:
    """Of the ring's m seconds c / f are done beside computing, the rest behind it: c + (m - c / f), or c."""
    behind = max(COMPUTE * ratio - COMPUTE / factor, 0.0)
    assert step("pipe_sgd", ratio, factor) == pytest.approx(COMPUTE + behind, rel=0.02)


@pytest.mark.parametrize(("rested", "many"), [(COMPUTE / 10, 1), (1e3 * COMPUTE, 2)])
def test_a_sum_right_behind_another_takes_longer(rested: float, many: int) -> None:
    """Of two sums the second waits for the first, and nothing is computed between them; ten milliseconds of computing
    before the first are enough for it to be by itself, or are not."""
    program, costs = prepared("ddp(bucket_bytes=0,first_bucket_bytes=0)", 3.0, 1.0)
    w, circle, more = costs.wiring, Circle(4), COMPUTE / 2
    row = ((1, w.waiting(1, circle) + more, 0.0, 1.0), (10**6, w.waiting(10**6, circle) + more, 0.0, 1.0))
    slow = replace(costs, wiring=replace(w, row=row, rested=rested))
    alone, found = (simulate(program, each, rounds=ROUNDS) for each in (costs, slow))
    assert found.step_seconds - alone.step_seconds == pytest.approx(many * more, rel=0.02)


@pytest.mark.parametrize("slow", [1.0, 1.5])
def test_what_a_sum_takes_more_of_the_core_is_told(slow: float) -> None:
    program, costs = prepared("ddp(bucket_bytes=0,first_bucket_bytes=0)", 3.0, 1.0)
    costs = replace(costs, slowdowns=(slow,) * 4)
    w, circle = costs.wiring, Circle(4)
    row = tuple((size, 0.0, w.reducing(size, circle) + 1e-3, 1.0) for size in (24, 48, 96, 10**6))
    more = replace(costs, wiring=replace(w, row=row, rested=COMPUTE / 10))
    alone, found = (simulate(program, each, rounds=ROUNDS) for each in (costs, more))
    assert [b - a for a, b in zip(alone.cores, found.cores, strict=True)] == pytest.approx([slow * 1e-3] * 4, rel=0.02)


@pytest.mark.parametrize(("ratio", "slow"), [(0.2, 1.0), (0.7, 1.0), (0.7, 3.0)])
def test_computing_takes_longer_for_what_moves_meanwhile(ratio: float, slow: float) -> None:
    """By as many core-seconds as the bytes that come and go cost it, of a slow device as it has them; behind computing
    they cost it nothing."""
    each = COMPUTE / 10 / (2 * RING)
    program, costs = prepared("pipe_sgd", ratio, 1.0)
    disturbed = replace(costs, wiring=replace(costs.wiring, disturbance=each), slowdowns=(slow,) * 4)
    assert simulate(program, disturbed, rounds=ROUNDS).step_seconds == pytest.approx(slow * 1.1 * COMPUTE, rel=0.02)
    program, costs = prepared("ddp", ratio, 1.0)
    disturbed = replace(costs, wiring=replace(costs.wiring, disturbance=each))
    alone, found = (simulate(program, one, rounds=ROUNDS).step_seconds for one in (costs, disturbed))
    assert found == pytest.approx(alone, rel=1e-9)


@pytest.mark.parametrize("ranks", [(1, 2), (0, 3), (0, 1, 2, 3)])
def test_a_servers_messages_are_felt_by_all_on_its_machine(ranks: tuple[int, ...]) -> None:
    """Rank 3 serves three workers; who shares no machine with it only feels messages of its own."""
    program, costs = prepared("ps_async", 0.5, 1.0)
    wiring = replace(costs.wiring, disturbance=COMPUTE / 100 / RING)
    costs = replace(costs, wiring=wiring, slowdowns=(1.0, 1.3, 1.7, 1.0))  # so that one computes while another sends
    apart, found = (
        simulate(program, replace(costs, hosts=on), rounds=ROUNDS).cores for on in ((), (Host(ranks, 4.0),))
    )
    more = [b - a for a, b in zip(apart, found, strict=True)]
    beside = {rank for rank in ranks if 3 in ranks and rank != 3}
    assert all(abs(one) < 1e-9 for rank, one in enumerate(more[:3]) if rank not in beside)
    assert (sum(more[rank] for rank in beside) > 1e-6) == bool(beside)


@pytest.mark.parametrize("text", ["ps_async", "ps_sync"])
def test_the_messages_of_several_servers_on_a_machine_add_up(text: str) -> None:
    """Each takes an even part of all that are there: of ranks 2 and 3, which serve, as much together as each one where
    the other is elsewhere."""
    program, costs = prepared(f"{text}(servers=2,bucket_bytes=0)", 0.5, 1.0)
    wiring = replace(costs.wiring, disturbance=COMPUTE / 100 / RING)
    costs = replace(costs, wiring=wiring, slowdowns=(1.0, 1.3, 1.0, 1.0))

    def cores(*hosts: Host) -> np.ndarray:
        return np.array(simulate(program, replace(costs, hosts=hosts), rounds=ROUNDS).cores[:2])

    apart = cores()
    one, other, both = (
        len(ranks) * (cores(Host(ranks, float(len(ranks)))) - apart) for ranks in ((0, 1, 2), (0, 1, 3), (0, 1, 2, 3))
    )
    assert one.sum() > 1e-6
    assert other.sum() > 1e-6
    assert both == pytest.approx(one + other, rel=1e-3, abs=1e-9)


@pytest.mark.parametrize("codec", ["q8", "onebit"])  # in hops, at the ends
def test_computing_takes_longer_while_another_lane_codes(codec: str) -> None:
    """By a quarter of what is coded beside it; behind computing, or where nobody computes, by nothing."""
    found = {}
    for name in ("pipe_sgd", "ddp"):
        program, costs = prepared(f"{name}(codec={codec})", 0.01, 1.0)
        costs = replace(costs, codecs={codec: (Touch(0.0, COMPUTE / 400), Touch(0.0, COMPUTE / 800))})
        alone = simulate(program, costs, rounds=ROUNDS)
        beside = simulate(program, replace(costs, wiring=replace(costs.wiring, coding=0.25)), rounds=ROUNDS)
        spent = sum(coded(program, i.act, costs) for i in program.roles[0].instructions if i.lane != "compute")
        found[name] = beside.step_seconds - alone.step_seconds, spent
    more, spent = found["pipe_sgd"]
    assert 0.05 * COMPUTE < spent < COMPUTE
    assert more == pytest.approx(0.25 * spent, rel=0.05)
    assert found["ddp"][0] == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize(
    ("hosts", "held"),
    [
        ((Host((0, 2), 1.0), Host((1, 3), 1.0)), True),
        ((Host((0, 1), 1.0), Host((2, 3), 1.0)), True),
        ((Host((0, 1, 2, 3), 4.0),), False),
        ((), False),
    ],
)
def test_a_message_is_held_up_by_who_computes_on_the_same_core(hosts: tuple[Host, ...], held: bool) -> None:
    """Of two stages, each with two replicas, the first goes on while what it sends is under way to the second, and one
    replica is later than the other. Where all have cores of their own, or share as many, nobody waits for one."""
    program, costs = prepared("one_f_one_b(stages=2,data=2,microbatches=4)", 3.0, 1.0)
    slow = replace(costs, wiring=replace(costs.wiring, others_overlap=((10**9, 3.0),)), hosts=hosts)
    alone, found = (simulate(program, each, rounds=4).step_seconds for each in (replace(costs, hosts=hosts), slow))
    assert (found > alone * 1.001) == held


def test_a_rank_that_computes_is_held_up_by_its_own_computing_and_not_once_more_by_others() -> None:
    """While it computes itself a message has the larger of both factors."""
    computing, mates = covered(np.array([0.0]), np.array([2.0])), covered(np.array([0.0]), np.array([5.0]))
    own, others = 1 / 4, 1 / 2
    at = np.array([1.0, 2.0, 4.0, 5.0, 6.0])
    assert slowed((computing, others - own), (mates, 1 - others)).by(at) == pytest.approx([0.25, 0.5, 1.5, 2.0, 3.0])


@pytest.mark.parametrize("ratio", [0.5, 3.0])
def test_a_sum_behind_computing_takes_what_it_takes_alone(ratio: float) -> None:
    assert step("ddp", ratio, 5.0) == pytest.approx(step("ddp", ratio, 1.0), rel=1e-9)


@pytest.mark.parametrize(
    "text", ["ddp(bucket_bytes=24)", "pipe_sgd", "local_sgd", "ps_sync", "d_psgd", "gpipe(stages=2,microbatches=4)"]
)
@pytest.mark.parametrize("ratio", [0.3, 2.0])
def test_no_step_gains_from_it_and_none_loses_more_than_the_factor(text: str, ratio: float) -> None:
    alone, beside = step(text, ratio, 1.0), step(text, ratio, 3.0)
    assert alone * (1 - 1e-9) <= beside <= 3.0 * alone


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("ddp(collective=ring)", RING / 6),
        ("ddp(collective=doubling)", 144.0),
        ("ddp(collective=ring,codec=truncate)", RING / 12),
    ],
)
def test_a_sum_that_goes_by_messages_is_held_up_like_these(text: str, size: float) -> None:
    """By as much as a message of the size of its hops: a quarter of the gradient, all of it, a quarter in half the
    bytes. The backend's own is held up as sums were measured to be."""
    program, costs = prepared(text, 1.0, 1.0)
    rows = ((1, 8.0), (2**20, 1.0))
    costs = replace(costs, wiring=replace(costs.wiring, hop_overlap=rows, overlap=((10**9, 3.0),)))
    factors = [move.factor for moves in moves_of(program, costs).values() for move in moves]
    assert factors == [pytest.approx(costs.wiring.slowdown(int(size), "hop"))]
    program, _ = prepared("ddp", 1.0, 1.0)
    assert [move.factor for moves in moves_of(program, costs).values() for move in moves] == [3.0]


def test_the_factor_lies_between_those_measured_and_its_seconds_stay_beyond_them() -> None:
    wiring = Wiring(overlap=((100, 5.0), (10_000, 2.0)))
    assert [wiring.slowdown(size) for size in (4, 100, 1000, 10_000)] == pytest.approx([5.0, 5.0, 3.5, 2.0])
    assert wiring.slowdown(100_000) == pytest.approx(1.1)
    assert wiring.slowdown(1000, "message") == 1.0
    assert Wiring().slowdown(1000) == 1.0


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0, 3)), max_size=12), st.floats(0, 12))
def test_busy_seconds_are_those_that_one_span_or_more_covers(spans: list[tuple[float, float]], moment: float) -> None:
    start = np.array([a for a, _ in spans])
    end = start + np.array([length for _, length in spans])
    edges = np.unique(np.clip([0.0, moment, *start, *end], 0.0, moment))
    middles = (edges[1:] + edges[:-1]) / 2
    seconds = sum(
        float(b - a) for a, b, at in zip(edges, edges[1:], middles, strict=False) if ((start < at) & (at < end)).any()
    )
    assert float(covered(start, end).by(np.array([moment]))[0]) == pytest.approx(seconds, abs=1e-9)


@pytest.mark.parametrize(("text", "longer"), [("ps_sync", 1.25), ("ddp", 1.0), ("gpipe(stages=2,microbatches=2)", 1.0)])
def test_a_servers_port_is_congested(text: str, longer: float) -> None:
    """Bound by its port a server's step takes the factor as long; who has one neighbour each way sends as before."""
    program, costs = prepared(text, 40.0, 1.0)
    beside = replace(costs, wiring=replace(costs.wiring, congestion=((1, 1.25), (2**20, 1.25))))
    alone, found = (simulate(program, each, rounds=ROUNDS).step_seconds for each in (costs, beside))
    assert found == pytest.approx(alone * longer, rel=0.02)


def test_a_port_among_such_ports_is_crowded() -> None:
    """Where all speak to several and hear from several at once, all ports are, and no port of a server and its workers
    is, nor one of ranks that speak to one at a time."""
    crowding = tuple((peers, ((1, factor), (2**20, factor))) for peers, factor in ((2, 1.2), (3, 1.5)))
    texts = {"d_psgd(neighbours=complete)": 1.5, "d_psgd(neighbours=ring)": 1.2, "gossip": 1.0, "ps_sync": 1.0}
    for text, longer in texts.items():
        program, costs = prepared(text, 40.0, 1.0)
        beside = replace(costs, wiring=replace(costs.wiring, crowding=crowding))
        alone, found = (simulate(program, each, rounds=ROUNDS).step_seconds for each in (costs, beside))
        assert found == pytest.approx(alone * longer, rel=0.02), text


def test_congestion_between_the_measured_sizes() -> None:
    wiring = Wiring(congestion=((2**18, 1.0), (2**20, 1.1), (2**22, 1.2)))
    assert wiring.congested(np.array([1.0, 2**18, 2**19, 2**21, 2**30])) == pytest.approx([1, 1, 1.05, 1.15, 1.2])
    assert Wiring().congested(np.array([1.0, 2.0])).tolist() == [1, 1]


def test_crowds_between_the_measured_ones() -> None:
    rows = tuple((peers, ((2**18, 1.0), (2**20, factor))) for peers, factor in ((2, 1.2), (6, 2.0)))
    sizes, peers = np.full(6, 2.0**20), np.array([1, 2, 4, 6, 9, 2])
    sizes[-1] = 2**18
    assert Wiring(crowding=rows).crowded(sizes, peers) == pytest.approx([1.0, 1.2, 1.6, 2.0, 2.0, 1.0])
    assert Wiring(congestion=rows[0][1]).crowded(sizes, peers) == pytest.approx([1.2] * 5 + [1.0])
    assert Wiring(crowding=rows[1:]).crowded(sizes, np.full(6, 2)) == pytest.approx([1.2] * 5 + [1.0])
