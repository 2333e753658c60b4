"""A simulated collective lasts exactly as long as its closed form says (CO-01), and its bytes are the schedule's."""

from __future__ import annotations

from dataclasses import replace
from math import ceil, log2

import numpy as np
import pytest

from partita.cluster.cluster import Device
from partita.cost.touch import Touch
from partita.program.instruction import Collective
from partita.program.space import Kind
from partita.program.timeline import Timeline
from partita.simulator.hops import makespan, scheduled
from partita.simulator.ports import Ports
from partita.simulator.simulate import simulate
from partita.wire.algorithms import ALGORITHMS, all_reduce
from partita.wire.loads import HopLoad, loads_of
from tests.priced import batches_of, priced, whole_cores
from tests.programs import program_by
from tests.small import two_layers
from tests.wire.sending import bytes_sent

ELEMENTS = 4 * 6 + 6 * 2
COMPUTE = 10e-3
SLOW = 1e5  # bytes a second


def step_of(collective: str, ranks: int, alpha: float, bandwidth: float = SLOW) -> Timeline:
    """One bucket of 36 numbers among devices that compute for 10 ms."""
    graph, machines = two_layers(), whole_cores(ranks, bandwidth)
    program = program_by(f"ddp(collective={collective})", graph, machines)
    batches = sorted({segment.batch for segment in program.segments})
    return simulate(program, priced(graph, machines, batches, operator=COMPUTE / 10, latency=alpha))


def closed(collective: str, p: int, alpha: float, n_beta: float) -> float:
    """Thakur, Rabenseifner & Gropp 2005, for p a power of two that divides n."""
    return {
        "ring": 2 * (p - 1) * alpha + 2 * (p - 1) / p * n_beta,
        "tree": 2 * ceil(log2(p)) * (alpha + n_beta),
        "doubling": log2(p) * (alpha + n_beta),
        "halving": 2 * log2(p) * alpha + 2 * (p - 1) / p * n_beta,
        "blocks": 2 * log2(p) * alpha + 2 * (p - 1) / p * n_beta,
        "hierarchical(2)": 2 * (1 + p // 2 - 1) * alpha + 2 * (p - 1) / p * n_beta,
    }[collective]


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("alpha", [0.0, 1e-3, 50e-3])
@pytest.mark.parametrize("collective", ["ring", "tree", "doubling", "halving", "blocks", "hierarchical(2)"])
def test_seconds_are_the_closed_form(collective: str, ranks: int, alpha: float) -> None:
    """CO-01: exactly, where p is a power of two and divides n."""
    found = step_of(collective, ranks, alpha).step_seconds - COMPUTE
    assert found == pytest.approx(closed(collective, ranks, alpha, 4 * ELEMENTS / SLOW), rel=1e-9)


@pytest.mark.parametrize("cores", [1.0, 4.0])
@pytest.mark.parametrize("times", [0.25, 3.0])
def test_a_hop_takes_its_wire_or_its_two_threads_whichever_is_longer(times: float, cores: float) -> None:
    """Sending and receiving take `times` the seconds of the wire each: a hop of n bytes by doubling takes n beta, or
    2 times that; and a device of four cores moves a message by one thread, no more quickly and no more slowly."""
    graph, machines = two_layers(), whole_cores(4, SLOW)
    machines = replace(machines, root=replace(machines.root, members=(Device(cores=cores),) * 4))
    program = program_by("ddp(collective=doubling)", graph, machines)
    costs = priced(graph, machines, batches_of(program), operator=COMPUTE / 10, sent=times / SLOW)
    hop = max(1, 2 * times) * 4 * ELEMENTS / SLOW
    assert simulate(program, costs).step_seconds - COMPUTE == pytest.approx(2 * hop, rel=1e-9)


@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 6])
@pytest.mark.parametrize("collective", [name for name in ALGORITHMS if name != "hierarchical"])
def test_bytes_are_the_schedule(collective: str, ranks: int) -> None:
    assert list(step_of(collective, ranks, 0.0).wire_sent) == bytes_sent(all_reduce(collective, ranks), ELEMENTS, 4)


def test_doubling_wins_small_and_ring_large() -> None:
    """CO-04: the argmin turns where the closed forms cross: 2(p-1)a + 2(p-1)/p nb = log2 p (a + nb)."""
    p = 4
    for n_beta in (1e-4, 1e-3, 1e-2):
        turn = n_beta * (log2(p) - 2 * (p - 1) / p) / (2 * (p - 1) - log2(p))
        for alpha, first in ((turn / 2, "ring"), (turn * 2, "doubling")):
            steps = {name: step_of(name, p, alpha, 4 * ELEMENTS / n_beta).step_seconds for name in ("ring", "doubling")}
            assert min(steps, key=lambda name: steps[name]) == first


def test_messages_of_a_step_take_turns_at_a_port() -> None:
    """Four ranks send a fifth ten bytes each, through its port of one byte a second."""
    loads = [HopLoad(0, rank, 4, 10, 0, 0, 0) for rank in range(4)]
    ways = [[2 * load.source, 2 * load.target + 1] for load in loads]
    assert makespan(loads, ways, np.full(4, 3.0), np.ones(10)) == pytest.approx(4 * 10 + 3)


def alone(collective: str, ranks: int, alpha: float, elements: int) -> float:
    """Seconds of one collective of bytes among ranks with a port each way of 1 byte a second."""
    loads = loads_of(all_reduce(collective, ranks), elements, 1)
    ways = [[2 * load.source, 2 * load.target + 1] for load in loads]
    return makespan(loads, ways, np.full(len(loads), alpha), np.ones(2 * ranks))


@pytest.mark.parametrize("ranks", [6, 9, 12])
def test_binary_blocks_against_folding(ranks: int) -> None:
    """CO-06: blocks beat folding where bytes count; one rank beside eight loses where each message waits its turn."""
    large = 1_000_000
    assert alone("blocks", ranks, 1.0, large) < alone("halving", ranks, 1.0, large)
    turns = sum(1 for load in loads_of(all_reduce("blocks", 9), large, 1) if load.target == 8)
    assert turns == 8


@pytest.mark.parametrize("ranks", [2, 4, 8, 16])
def test_halving_never_loses_to_a_ring_among_powers_of_two(ranks: int) -> None:
    """CO-05: the same bytes in fewer steps."""
    for elements in (ranks, 1000 * ranks, 10**6 * ranks):
        for alpha in (0.0, 1.0, 1000.0):
            assert alone("halving", ranks, alpha, elements) <= alone("ring", ranks, alpha, elements) * (1 + 1e-9)
    assert alone("halving", 8, 1000.0, 8) < 0.5 * alone("ring", 8, 1000.0, 8)


def test_where_folding_loses_to_a_ring() -> None:
    """CO-05: six ranks, two of which fold: 6 a + 3.5 n b against 10 a + 10/6 n b, which cross at n b = 24/11 a."""
    alpha, turn = 1e5, 24 / 11 * 1e5
    for elements, folding in ((0.9 * turn, True), (1.1 * turn, False)):
        n = round(elements / 12) * 12
        assert (alone("halving", 6, alpha, n) < alone("ring", 6, alpha, n)) is folding


@pytest.mark.parametrize(("ranks", "width"), [(16, 4), (12, 3), (8, 2)])
@pytest.mark.parametrize(("inside", "across"), [(0.0, 0.0), (0.0, 100.0), (1.0, 100.0), (100.0, 100.0)])
@pytest.mark.parametrize("each", [1, 1000])
def test_the_switch_between_a_ring_and_nodes(ranks: int, width: int, inside: float, across: float, each: int) -> None:
    """CO-07: 2(k-1) a_intra + 2(p/k-1) a_inter + 2(p-1)/p n b against a ring's 2(p-1) a_inter + 2(p-1)/p n b: the same
    bytes in fewer slow messages, so that the closed forms meet where neither message costs anything, at no size."""
    closed_forms = {
        f"hierarchical({width})": 2 * (width - 1) * inside + 2 * (ranks // width - 1) * across,
        "ring": 2 * (ranks - 1) * across,
    }
    for name, waits in closed_forms.items():
        loads = loads_of(all_reduce(name, ranks), ranks * each, 1)
        wait = np.array([inside if load.source // width == load.target // width else across for load in loads])
        ways = [[2 * load.source, 2 * load.target + 1] for load in loads]
        found = makespan(loads, ways, wait, np.ones(2 * ranks))
        assert found == pytest.approx(waits + 2 * (ranks - 1) * each, rel=1e-9)
    nodes, ring = closed_forms.values()
    assert (nodes < ring) is (across > 0)


@pytest.mark.parametrize("slow", [0, 1])
def test_what_a_hop_takes_of_its_source_and_of_its_target_goes_by_their_speeds(slow: int) -> None:
    """A broadcast among two: rank 0 encodes and sends, rank 1 receives and decodes, the one behind the other. A rank of
    half the speed takes twice as long for its part."""
    graph, machines = two_layers(), whole_cores(2, 1e9)
    program = program_by("ddp(collective=tree,codec=q8)", graph, machines)
    (act,) = (i.act for i in program.roles[0].instructions if isinstance(i.act, Collective))
    encode, decode, sent, received = 1e-5, 3e-5, 2e-4, 5e-4  # an element, an element, a byte, a byte
    costs = priced(graph, machines, batches_of(program))
    costs = replace(
        costs, codecs={"q8": (Touch(0.0, encode), Touch(0.0, decode))},
        wiring=replace(costs.wiring, sent=sent, received=received),
    )  # fmt: skip
    speed = np.array([0.5 if rank == slow else 1.0 for rank in range(2)])
    ports = Ports(machines, costs.wiring)
    found = scheduled(program, replace(act, kind=Kind.BROADCAST), (0, 1), costs, ports, speed, handling=speed)
    taken = np.array([ELEMENTS * encode + (ELEMENTS + 4) * sent, (ELEMENTS + 4) * received + ELEMENTS * decode]) / speed
    assert found["least"] == pytest.approx(taken.max())
    assert found["latency"] + found["least"] == pytest.approx(taken.sum())
