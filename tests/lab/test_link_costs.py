"""From made-up measurements the laws by which they were made are found again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.cluster.cluster import Cluster, Device, Group, Link
from partita.cost.costs import Host
from partita.cost.wiring import ALONE, CURVED, Circle, Post, Wiring
from partita.lab.contention import Ranks, ranks_of, with_contention
from partita.lab.link_costs import RARE, kinds_of, queue_of, wiring_of
from partita.probes.crowd_timing import crowds_of
from partita.probes.disturbance import UNDISTURBED
from partita.probes.link_timing import CHAIN
from partita.program.space import Kind
from partita.simulator.activities import resources_of
from partita.simulator.clock import advance
from tests.activities import Activity, activities_of
from tests.programs import program_by
from tests.small import layers

RATE, LATENCY, AHEAD, START, EACH = 1e8, 2e-3, 1e-3, 1e-4, 1e-10
APART = 2e-4  # seconds of computing a message
BUSY = [(1, 4, 2 * START), (8, 4, START), (24, 4, START / 2), (1, 2**18, 5 * START + EACH * 2**18)]
QUICK = {"busy": BUSY, "serving": [(APART, 4, START / 4)]}
POSTED = [{kind: [(n, size, 2 * seconds) for n, size, seconds in rows] for kind, rows in QUICK.items()}, QUICK]
SIZES = (4, 2**16, 2**20, 2**22)
RANKS = Ranks(size=4, slowest=RATE, burst=0, quota=1.0, spread=1.0, way=0.0)


def made_up(congestion: float, ranks: int = 4) -> list[dict[str, Any]]:
    """What ranks of a whole core each say, on ports of RATE without bursts, where processors are never the limit."""
    share = {kind: (2 if kind is Kind.ALL_REDUCE else 1) * (ranks - 1) / ranks for kind in CURVED}
    reply: dict[str, Any] = {
        kind: [(n, AHEAD + LATENCY + share[kind] * n / RATE, AHEAD, AHEAD) for n in SIZES] for kind in CURVED
    }
    row = CHAIN * (2 * LATENCY), CHAIN * share[Kind.ALL_REDUCE] / RATE
    reply["row"] = [(n, AHEAD + row[0] + row[1] * n, AHEAD, AHEAD) for n in SIZES[:2]]
    reply["message"] = [(n, 3 * START + EACH * n) for n in SIZES]  # lone ones
    hops = [(n, 2e-4 + max(n / RATE, 2 * START + 2 * EACH * n)) for n in SIZES]
    reply["posted"], reply["hops"] = POSTED, [(n, wall, wall, 2 * START) for n, wall in hops]
    reply["waking"] = 3 * 2 * START + 5e-4
    reply["value"], reply["lone"], reply["handed"] = (5 * START, 2 * START), (START + 7e-4, 3 * START), 4 * START
    alone = [(n, 8, 8 * n * (congestion if n == SIZES[-1] else 0.98) / RATE) for n in SIZES[1:]]
    crowds = [(many, [(n, 8, 8 * n * congestion**many / RATE) for n in SIZES[1:]]) for many in (2, 3)]
    slowed = [(many, [(n, 8, 2 * seconds) for n, _, seconds in rows]) for many, rows in ((0, alone), *crowds)]
    reply["crowds"] = [slowed, [(0, alone), *crowds]]
    reply["queued"] = [(n, [n / RATE, 2 * n / RATE, 3 * n / RATE]) for n in SIZES[1:]]
    return [reply] * ranks


@pytest.mark.parametrize(("beyond", "size"), [(3e-10, 2**20), (3e-10, 2**22), (-1e-11, 2**20)])
def test_what_messages_and_computing_cost_each_other_is_without_what_messages_take(beyond: float, size: int) -> None:
    """No rank's median is less than nothing, and a card, which feels no messages, leaves the wiring as it is. Of what
    computing takes behind waits the median over ranks counts, for each wait."""
    wiring = Wiring(start=START, sent=EACH, received=3 * EACH)
    own, cold = 2 * EACH + START / size, [(1e-2, 0.0), (1e-1, 1e-3)]
    behind = [[(wait, part * more) for wait, more in cold] for part in (0.5, 1.0, 7.0)]
    replies = [
        {"size": size, "taken": own + part * beyond, "cooling": rows, "overlapped": {}}
        for part, rows in zip((0.5, 1.0, 7.0), behind, strict=True)
    ]
    found = with_contention(wiring, replies, RANKS)
    assert found.disturbance == pytest.approx(max(beyond, 0.0))
    assert found.cooling == tuple(cold)
    more = [*replies, UNDISTURBED | {"size": size, "taken": own}]
    assert with_contention(wiring, more, RANKS).cooling == tuple(cold)
    assert with_contention(wiring, [UNDISTURBED] * 3, RANKS) == wiring


@pytest.mark.parametrize("congestion", [1.0, 1.2])
def test_the_laws_are_found_again(congestion: float) -> None:
    machines = Cluster("four", Group("root", (Device(cores=1.0),) * 4, (Link(RATE, 0.0),) * 4))
    found = wiring_of(made_up(congestion), machines)
    assert found.efficiency == pytest.approx(1.0, abs=1e-3)
    assert [row[1] for row in found.curves.of(Kind.ALL_REDUCE, ALONE)] == pytest.approx([LATENCY] * 4, rel=0.01)
    each = CHAIN / (CHAIN - 1) * LATENCY  # the first of a row takes LATENCY, in the mean they take twice that
    assert [found.behind(n, ALONE)[0] for n in SIZES] == pytest.approx([each] * 2 + [0.0] * 2, rel=0.01)
    assert [found.behind(n, ALONE)[1] for n in SIZES] == pytest.approx([0.0] * 4)
    assert found.rested == AHEAD
    assert (found.start, found.message) == pytest.approx((START, 7e-4), rel=0.01)
    starts = [found.starting(4, Post(*n)) for n in ((1, 1), (8, 1), (24, 1), (8, 3), (8, 9), (1, 3))]
    assert starts == pytest.approx([2 * START, START, START / 2, START / 2, START / 2, START])
    serving = [found.starting(4, Post(apart=apart)) for apart in (RARE, APART, 0.0)]
    assert serving == pytest.approx([2 * START, START / 4, START / 4])
    waking = [found.starting(size, Post(8)) - START for size in (2**10, 2**14, 2**16, 2**18, 2**22)]
    assert waking == pytest.approx([0.0, 0.0, 1.5 * START, 3 * START, 3 * START])
    assert (found.value, found.value_start) == pytest.approx((3 * START, 4 * START))
    assert found.hops == tuple((n, pytest.approx(2e-4, rel=0.01)) for n in SIZES)
    assert found.first_hop == pytest.approx(5e-4)
    assert (found.sent, found.received) == pytest.approx((EACH, EACH))
    assert [factor for _, factor in found.congestion] == pytest.approx([1.0, 1.0, congestion], rel=1e-3)
    for many, rows in found.crowding:
        assert [factor for _, factor in rows] == pytest.approx([congestion**many] * 3, rel=1e-3)
    assert [many for many, _ in found.crowding] == [2, 3]
    assert [bytes_ / size for size, bytes_ in found.queue] == pytest.approx([2.0] * 3)


QUOTA, BURST, FAST, FIXED, ADDED = 0.5, 2**20, 5e8, 1e-5, 3e-10
WIDTH = 0.9 * FAST  # of payload


def by_laws(spread: float, ranks: int = 4) -> list[dict[str, Any]]:
    """What ranks of half a core each say, of which `spread` share a core, on ports with bursts: a round takes LATENCY
    (a gather twice that) beyond what the quota takes for its core-seconds, or else what shared cores take to compute
    and then, of a sum, its bytes beyond the burst or its core-seconds; messages take what both ends do of the core."""
    reply, laps = made_up(1.0, ranks)[0], {kind: (2 if kind is Kind.ALL_REDUCE else 1) for kind in CURVED}
    rate = min(QUOTA, 1 / spread)

    def row(kind: Kind, n: int, many: int) -> tuple[int, float, float, float]:
        bytes_ = laps[kind] * (ranks - 1) / ranks * n
        core = many * (FIXED + bytes_ * (2 * EACH + (kind is Kind.ALL_REDUCE) * ADDED / 2))
        busy = AHEAD * spread + max((many * bytes_ - BURST) / WIDTH, core * spread)
        waits = many * LATENCY * (1 + (kind is Kind.ALL_GATHER))
        return n, waits + max((AHEAD + core) / QUOTA, busy), AHEAD + core, AHEAD

    def ends(n: int, rate: float) -> float:
        return max(n / WIDTH, (2 * START + 2 * EACH * n) / rate)

    reply |= {kind: [row(kind, n, 1) for n in SIZES] for kind in CURVED}
    reply["row"] = [row(Kind.ALL_REDUCE, n, CHAIN) for n in SIZES[:2]]
    hops = [2e-4 + ends(n, rate) for n in SIZES]
    saved = hops[1] * FAST  # by its port for as long as a hop takes, which goes at once
    quick = [*hops[:-1], hops[1] + (SIZES[-1] - SIZES[1] - saved) / WIDTH]
    reply["hops"] = [(n, wall, soon, 2 * START) for n, wall, soon in zip(SIZES, hops, quick, strict=True)]
    crowds = ((0, 1.1, QUOTA), (2, 1.2, rate))
    reply["crowds"] = [[(many, [(n, 8, 8 * by * ends(n, at)) for n in SIZES[1:]]) for many, by, at in crowds]]
    half = rate / 2  # of the core, which computing has the other half of
    beside = [(n, 7e-4 + max(n / WIDTH, (START + EACH * n) / half)) for n in SIZES[1:]]
    cores = [(n, row(Kind.ALL_REDUCE, n, 1)[2] - AHEAD) for n in SIZES[1:]]
    saved = min(BURST, LATENCY * WIDTH)  # by a port, while one sum is followed by the next
    sums = [(n, LATENCY + max((1.5 * n - saved) / WIDTH, core / half)) for n, core in cores]
    reply |= UNDISTURBED
    idle = [(n, 7e-4 + max(n / WIDTH, (START + EACH * n) / rate)) for n in SIZES[1:]]  # beside others' computing
    reply["overlapped"] = {
        "message": [(n, 1.5 * wall) for n, wall in beside], Kind.ALL_REDUCE: [(n, 1.7 * wall) for n, wall in sums],
        "others": [(n, 1.3 * wall) for n, wall in idle],
    }  # fmt: skip
    return [reply] * ranks


@pytest.mark.parametrize("spread", [1.5, 3.0])
def test_the_laws_are_found_again_where_quotas_and_shared_cores_hold_ranks_up(spread: float) -> None:
    machines = Cluster("four", Group("root", (Device(cores=QUOTA),) * 4, (Link(FAST, 0.0, BURST),) * 4))
    hosts, replies = [Host((0, 1, 2, 3), 4 / spread)], by_laws(spread)
    found = with_contention(wiring_of(replies, machines, hosts), replies, ranks_of(machines, hosts))
    assert found.efficiency == pytest.approx(WIDTH / FAST, abs=1e-3)
    assert found.reduced == pytest.approx(ADDED, rel=0.01)
    for kind in CURVED:
        latency = LATENCY * (1 + (kind is Kind.ALL_GATHER))
        assert [row[1] for row in found.curves.of(kind, ALONE)] == pytest.approx([latency] * 4, rel=0.05), kind
        assert [row[3] for row in found.curves.of(kind, ALONE)] == pytest.approx([1.0] * 4, abs=0.02)
    cores = [FIXED + 1.5 * n * (2 * EACH + ADDED / 2) for n in SIZES]
    assert [row[2] for row in found.curves.of(Kind.ALL_REDUCE, ALONE)] == pytest.approx(cores)
    assert [row[2] for row in found.row] == pytest.approx(cores)
    assert found.hops == tuple((n, pytest.approx(2e-4, rel=0.05)) for n in SIZES)
    assert [factor for _, factor in found.congestion] == pytest.approx([1.1] * 3, rel=0.02)
    assert [factor for _, rows in found.crowding for _, factor in rows] == pytest.approx([1.2] * 3, rel=0.02)
    assert [factor for _, factor in found.message_overlap] == pytest.approx([1.5] * 3, rel=0.02)
    assert [factor for _, factor in found.others_overlap] == pytest.approx([1.3] * 3, rel=0.02)
    assert [factor for _, factor in found.overlap] == pytest.approx([1.7] * 3, rel=0.02)


@pytest.mark.parametrize("way", [0.0, 3e-3])
def test_the_latency_of_links_counts_once(way: float) -> None:
    """Whoever prices a message adds that of the links on its way, which what was measured has in it already."""
    machines = Cluster("four", Group("root", (Device(cores=1.0),) * 4, (Link(RATE, way / 2),) * 4))
    replies = made_up(1.0)
    reply = replies[0]
    later = dict(reply, hops=[(n, wall + way, quick + way, core) for n, wall, quick, core in reply["hops"]])
    later |= {name: (reply[name][0] + way, reply[name][1]) for name in ("lone", "value")}
    beside = [(n, 1.5 * (7e-4 + n / RATE) + way) for n in SIZES[1:]]
    later |= UNDISTURBED | {"overlapped": {"message": beside}}
    found = with_contention(wiring_of([later] * 4, machines), [later] * 4, ranks_of(machines, ()))
    assert (found.message, found.value) == pytest.approx((7e-4, 3 * START), rel=0.01)
    assert found.hops == tuple((n, pytest.approx(2e-4, rel=0.01)) for n in SIZES)
    factors = [factor for _, factor in found.message_overlap]
    took = [factor * (way + 7e-4 + n / RATE) for (n, _), factor in zip(beside, factors, strict=True)]
    assert took == pytest.approx([wall for _, wall in beside], rel=0.01)
    hops = [way + 2e-4 + max(n / RATE, 2 * START + 2 * EACH * n) for n in SIZES[1:]]
    took = [max(factor, 1.0) * hop for (_, factor), hop in zip(found.hop_overlap, hops, strict=True)]
    assert took == pytest.approx([max(wall, hop) for (_, wall), hop in zip(beside, hops, strict=True)], rel=0.01)


def test_messages_of_a_chain_cost_their_wake_ups() -> None:
    """What a chain takes is the same; what of it is the processor's is three times as much as a row's messages say."""
    machines = Cluster("four", Group("root", (Device(cores=1.0),) * 4, (Link(RATE, 0.0),) * 4))
    replies = made_up(1.0)
    replies[0]["hops"][0] = (4, 8 * START, 8 * START, 6 * START)
    found = wiring_of(replies, machines)
    assert (found.start, found.hop_start, found.hopping_start) == pytest.approx((START, 3 * START, 3 * START))
    assert found.hop(4) == pytest.approx(2 * START, rel=1e-3)
    assert Wiring().hopping_start == Wiring().start


def test_a_host_that_holds_most_chains_up_takes_nothing_from_the_link() -> None:
    machines = Cluster("four", Group("root", (Device(cores=1.0),) * 4, (Link(RATE, 0.0),) * 4))
    replies = made_up(1.0)
    hops = replies[0]["hops"]
    hops[-1] = (SIZES[-1], 1.3 * hops[-1][1], *hops[-1][2:])
    found = wiring_of(replies, machines)
    assert found.efficiency == pytest.approx(1.0, abs=0.01)
    assert found.hop(SIZES[-1]) == pytest.approx(0.3 * SIZES[-1] / RATE, rel=0.05)


def test_a_sum_that_wastes_a_link_leaves_it_to_messages() -> None:
    machines = Cluster("four", Group("root", (Device(cores=1.0),) * 4, (Link(RATE, 0.0),) * 4))
    replies = made_up(1.0)
    replies[0]["all_reduce"] = [(n, AHEAD + LATENCY + 1.5 * n * 1.2 / RATE, AHEAD, AHEAD) for n in SIZES]
    found, circle = wiring_of(replies, machines), Circle(4)
    assert (found.efficiency, found.carried(SIZES[-1], circle)) == pytest.approx((1.0, 1.2), rel=1e-3)
    assert found.waiting(SIZES[-1], circle) == pytest.approx(LATENCY, rel=0.01)


def test_only_the_collectives_of_programs_need_curves() -> None:
    machines = Cluster("four", Group("root", (Device(cores=1.0),) * 4, (Link(RATE, 0.0),) * 4))
    plans = {"ddp": (Kind.ALL_REDUCE,), "zero3": CURVED, "local_sgd": (Kind.ALL_REDUCE,)}
    graph = layers(2)
    for name, kinds in plans.items():
        assert kinds_of([program_by(name, graph, machines)]) == kinds


def test_a_collective_that_was_not_timed_costs_its_messages() -> None:
    machines = Cluster("four", Group("root", (Device(cores=1.0),) * 4, (Link(RATE, 0.0),) * 4))
    replies = [{name: rows for name, rows in reply.items() if name not in CURVED[1:]} for reply in made_up(1.0)]
    found, whole, circle = wiring_of(replies, machines), wiring_of(made_up(1.0), machines), Circle(4)
    assert found.curves.of(Kind.ALL_REDUCE, ALONE) == whole.curves.of(Kind.ALL_REDUCE, ALONE)
    assert found.waiting(2**20, circle, Kind.ALL_GATHER) == pytest.approx(3 * found.hop(2**18))


def test_who_crowds_in_the_probe() -> None:
    assert crowds_of(0, 2) == ()
    assert crowds_of(1, 3) == ((2, [0, 2]),)
    assert [crowds_of(rank, 4) for rank in (0, 3)] == [((2, [1, 3]), (3, [1, 2, 3])), ((2, [0, 2]), (3, [0, 1, 2]))]


def test_a_small_sum_that_something_held_up_takes_no_longer_than_a_larger_one() -> None:
    machines = Cluster("four", Group("root", (Device(cores=1.0),) * 4, (Link(RATE, 0.0),) * 4))
    replies = made_up(1.0)
    rows = replies[0]["all_reduce"]
    before = list(rows)
    rows[1] = (rows[1][0], rows[2][1] + 0.02, rows[2][2] + 0.01, AHEAD)
    _, held, larger, _ = wiring_of(replies, machines).curves.of(Kind.ALL_REDUCE, ALONE)
    assert held[2] == larger[2]
    assert held[1] < 0.02
    again = [reply | {"all_reduce": [*reply["all_reduce"], *before]} for reply in replies]
    assert wiring_of(again, machines) == wiring_of(made_up(1.0), machines)


@pytest.mark.parametrize(
    ("ends", "messages"),
    [
        ((3, 3, 3), 0.0),
        ((2, 3, 3), 0.5),
        ((1, 3, 3), 1.0),
        ((1, 2.5, 3), 1.5),
        ((1, 2, 3), 2.0),
        ((3.1, 3.1, 3.1), 0.0),
    ],
)
def test_ends_say_what_leaves_in_order(ends: tuple[float, ...], messages: float) -> None:
    assert queue_of(2**20, ends) == pytest.approx(messages * 2**20)


@given(st.integers(2, 9), st.floats(0.0, 12.0), st.integers(2**10, 2**24))
def test_the_clock_lets_messages_come_as_they_were_seen_to(many: int, messages: float, size: int) -> None:
    """Queue -> shares of a port -> the clock's ends -> the same queue, less by what each of the first leaves
    to those behind it."""
    queue = min(messages, many - 1.0) * size
    wiring = Wiring(queue=((2**10, queue), (2**24, queue)))
    users = wiring.precedence(np.full(many, float(size)), np.arange(many), np.full(many, many))
    sent = [Activity(demands=((0, size / k),), times=(k,)) for k in users.tolist()]
    _, ends = advance(activities_of(sent), resources_of([(RATE, RATE, 0.0)]))
    assert ends.max() == pytest.approx(many * size / RATE)
    assert 0.65 * queue - 1e-6 <= queue_of(size, sorted(ends.tolist())) <= queue * (1 + 1e-6) + 1e-6


def test_where_no_queue_was_seen_all_share() -> None:
    assert Wiring().precedence(np.array([1.0, 2.0]), np.array([0, 1]), np.array([2, 2])).tolist() == [1, 1]
