"""Servers that wait for nobody, by the clock: rates, staleness and stragglers as their papers and plain sums say."""

from __future__ import annotations

from itertools import groupby

import pytest

from partita.cluster.cluster import Cluster, Device, Group, Link
from partita.cost.touch import Touch
from partita.program.ledger import Merge, staleness_of, steady, step_of
from partita.program.timeline import Timeline
from partita.simulator.simulate import simulate
from tests.priced import priced
from tests.programs import program_by
from tests.small import layers

GRAPH = layers(6, batch=24)


def machines(*speeds: float) -> Cluster:
    """Workers of these speeds and a server at one fast switch."""
    devices = tuple(Device(cores=1.0, speed=speed) for speed in (*speeds, 1.0))
    return Cluster("unequal", Group("root", devices, (Link(1e9, 0.0),) * len(devices)))


def simulated(text: str, *speeds: float, rounds: int = 4) -> Timeline:
    place = machines(*speeds)
    program = program_by(text, GRAPH, place)
    batches = sorted({segment.batch for segment in program.segments})
    costs = priced(GRAPH, place, batches, copy=Touch(1e-6, 0.0), update=Touch(1e-5, 0.0), latency=1e-5)
    return simulate(program, costs, rounds=rounds)


def mean(histogram: dict[int, float]) -> float:
    return sum(staleness * share for staleness, share in histogram.items())


@pytest.mark.parametrize("slowness", [2, 5])
def test_a_straggler_costs_its_own_share_only(slowness: int) -> None:
    """DP-10: four workers, one slow: (3 + 1/s) / 4 of full speed, where lockstep has 1/s."""
    full = simulated("ps_async", 1, 1, 1, 1).step_seconds
    assert simulated("ps_async", 1, 1, 1, 1 / slowness).step_seconds == pytest.approx(
        full * 4 / (3 + 1 / slowness), rel=0.03
    )
    assert simulated("ps_sync", 1, 1, 1, 1 / slowness).step_seconds == pytest.approx(full * slowness, rel=0.03)


@pytest.mark.parametrize("staleness", [0, 1, 2, 3, 9])
def test_a_quorum_is_held_back_by_its_bound_only(staleness: int) -> None:
    """DP-20: four workers, one five times slower, S = 3: in its time are s = tau - 1 rounds of three, and one of all;
    beyond that every round has three, as without it."""
    text = f"admm(period=1,need=3,staleness={staleness})"
    together = simulated("admm(period=1,need=4,staleness=0)", 1, 1, 1, 1, rounds=40).step_seconds
    expected = max(20 / (3 * staleness + 4), 4 / 3)
    assert simulated(text, 1, 1, 1, 0.2, rounds=40).step_seconds == pytest.approx(together * expected, rel=0.05)


@pytest.mark.parametrize("slowness", [2, 5, 10])
def test_backups_make_a_step_as_long_as_the_ordinary_ones(slowness: int) -> None:
    """DP-11: with one straggler and b = 1 a round takes what it takes without one, at most 1.2 times; three of four
    parts are applied, so a step is 4/3 of it."""
    plain = simulated("ps_sync", 1, 1, 1, 1).step_seconds
    late = simulated("backup_workers(backup=1)", 1, 1, 1, 1 / slowness).step_seconds * 3 / 4
    assert plain * 0.95 <= late <= plain * 1.2


@pytest.mark.parametrize("slowness", [2, 5])
def test_servers_beside_workers_cost_no_device(slowness: int) -> None:
    """DP-11: four devices, one slow, b = 1: three of four parts at the pace of the others, 3/4 of the slowness over
    waiting for all; asynchronous ones count the slow one's part too."""
    place = Cluster(
        "slow", Group("root", tuple(Device(cores=1.0, speed=s) for s in (1.0, 1.0, 1.0, 1 / slowness)),
                      (Link(1e9, 0.0),) * 4)
    )  # fmt: skip

    def step(text: str) -> float:
        program = program_by(text, GRAPH, place)
        batches = sorted({segment.batch for segment in program.segments})
        costs = priced(GRAPH, place, batches, copy=Touch(1e-6, 0.0), update=Touch(1e-5, 0.0), latency=1e-5)
        return simulate(program, costs).step_seconds

    waiting = step("ddp")
    assert waiting / step("backup_workers(own=false,servers=0)") == pytest.approx(3 / 4 * slowness, rel=0.1)
    assert waiting / step("ps_async(own=false,servers=0)") == pytest.approx((3 * slowness + 1) / 4, rel=0.1)


def test_equal_workers_are_as_stale_as_there_are_others() -> None:
    """DP-09: the mean of the staleness histogram is p - 1; PM-11: one more where a gradient takes that much longer."""
    for p in (2, 3, 4, 6):
        assert mean(staleness_of(simulated("downpour", *(1.0,) * p).ledger)) == pytest.approx(p - 1, rel=0.25)


@pytest.mark.parametrize(("push", "fetch"), [(2, 3), (3, 1), (1, 4)])
def test_pushes_and_reads_come_as_often_as_asked(push: int, fetch: int) -> None:
    """DP-09: a push sums n_push minibatches, and n_fetch pushes in a row are of one read."""
    text, place = f"downpour(push={push},fetch={fetch})", machines(1, 1, 1)
    ledger = simulated(text, 1, 1, 1, rounds=3).ledger
    for worker in range(3):
        reads = [m.read for m in ledger if (m.worker, m.bucket) == (worker, ledger[0].bucket)]
        assert {len([*group]) for _, group in groupby(reads)} == {fetch}
    assert program_by(text, GRAPH, place).steps == push * fetch


def test_unequal_workers_differ_in_staleness_and_not_in_its_mean() -> None:
    """PM-11's distribution: each merge makes every other worker's gradient one older, so the mean is p - 1; the slow
    worker's own is higher by how much slower it is."""
    ledger = simulated("ps_async", 1, 1, 1, 0.2).ledger
    found = staleness_of(ledger)
    assert mean(found) == pytest.approx(3, rel=0.25)
    slow = [merge.staleness for merge in steady(ledger, 4) if merge.worker == 3]
    assert slow
    assert all(13 <= staleness <= 17 for staleness in slow)
    assert sum(found.values()) == pytest.approx(1)


@pytest.mark.parametrize(("workers", "n"), [(4, 2), (6, 3), (6, 1), (8, 2), (5, 2), (7, 4)])
def test_softsync_is_as_stale_as_its_n(workers: int, n: int) -> None:
    """DP-16: mean staleness (L - 1) / c within 10 %, c = L // n, and never beyond 2 n + 1."""
    found = staleness_of(simulated(f"softsync(n={n})", *(1.0,) * workers).ledger)
    assert mean(found) == pytest.approx((workers - 1) / (workers // n), rel=0.1)
    assert max(found) <= 2 * n + 1


@pytest.mark.parametrize("staleness", [0, 2, 8, 30, 40, 60])
def test_a_lasting_straggler_holds_bounded_staleness_back(staleness: int) -> None:
    """DP-14, C12: when a worker three times slower has ended its clock N, updates / 4N = 1 + 3 min(s, 2N) / 4N: from
    s = 2N on nobody was held back."""
    clocks = 20
    ledger = simulated(f"ssp(staleness={staleness})", 1, 1, 1, 1 / 3, rounds=4 * clocks).ledger
    bucket = ledger[0].bucket
    merges = [merge for merge in ledger if merge.bucket == bucket]
    last = next(i for i, merge in enumerate(merges) if (merge.worker, merge.turn) == (3, clocks - 1))
    made = (last + 1) / (4 * clocks)
    assert made == pytest.approx(1 + 3 * min(staleness, 2 * clocks) / (4 * clocks), rel=0.05)
    assert all(m.turn - 1 - staleness <= other.turn for m, other in _pairs(merges))


def _pairs(merges: list[Merge]) -> list[tuple[Merge, Merge]]:
    """Each merge beside the last one of the slow worker before it."""
    found, slow = [], None
    for merge in merges:
        if merge.worker == 3:
            slow = merge
        elif slow is not None:
            found.append((merge, slow))
    return found


def test_more_servers_take_their_part_of_the_time_until_the_workers_own_port_binds() -> None:
    """DP-07: messages rule; with k servers of k ports a step takes 1 / k of what one takes, while k is no more than p;
    with more it takes what a worker's own port does."""
    graph, seconds = layers(64, batch=24), []
    for servers in (1, 2, 4, 8):
        place = Cluster("thin", Group("root", (Device(cores=1.0),) * (4 + servers), (Link(1e5, 0.0),) * (4 + servers)))
        program = program_by(f"ps_sync(servers={servers},bucket_bytes=64)", graph, place)
        costs = priced(graph, place, sorted({segment.batch for segment in program.segments}), operator=1e-9)
        seconds.append(simulate(program, costs).step_seconds)
    assert seconds[0] / seconds[1] == pytest.approx(2, rel=0.1)
    assert seconds[0] / seconds[2] == pytest.approx(4, rel=0.1)
    assert seconds[2] == pytest.approx(seconds[3], rel=0.1)
    assert min(seconds) >= graph.trained_bytes / 1e5


def test_samples_count_between_the_first_to_start_and_the_first_to_end() -> None:
    """Two workers of rates 1 and 1/2, a quarter of a step a round each: 0.375 steps a second."""
    ends = [[1.0, 2.0, 3.0, 4.0, 5.0], [2.0, 4.0, 6.0, 8.0, 10.0]]
    assert step_of(ends, [0.25, 0.25], 1) == pytest.approx(1 / 0.375)


def test_the_steady_state_leaves_out_who_is_alone_in_the_end() -> None:
    merges = [Merge("b", n % 2, n // 2, max(n - 1, 0), n) for n in range(8)]
    late = [Merge("b", 1, 4 + n, 8 + n, 8 + n) for n in range(3)]
    assert staleness_of(merges + late, skip=1)[1] > 0.5
