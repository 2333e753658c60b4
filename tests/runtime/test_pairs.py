"""Workers that average two by two at their own pace: what the catalogue says, and the replay of their ledgers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from partita.cluster.cluster import Cluster, Device, Group, Link
from partita.errors import LoweringError, ProgramError
from partita.graph.graph import Graph
from partita.lowering.lower import lower
from partita.lowering.pairs import averagings_of
from partita.oracles.check import TOLERANCE, checked
from partita.plan.sync import Gossip
from partita.program.space import Space
from partita.recipes.catalogue import call
from partita.simulator.simulate import simulate
from partita.task import Task
from tests.oracles.test_replay import Run
from tests.priced import batches_of, priced
from tests.programs import program_by
from tests.runtime.drifting import drifting, weights
from tests.small import cluster_of, layers

SIZE = 4


@pytest.mark.parametrize(
    ("plan", "size"), [("ad_psgd(draws=2,bucket_bytes=400)", 4), ("ad_psgd(period=2,draws=3)", 3), ("ad_psgd", 2)]
)
@pytest.mark.parametrize("order", [0, 1])
def test_a_run_equals_the_replay_of_its_meetings(task: Task, plan: str, size: int, order: int) -> None:
    """DP-22: the gradient at the copy that was taken, added after the meetings that came meanwhile."""
    machines = cluster_of(size)
    found = checked(task, lambda graph: call(plan, graph, machines), machines, steps=5, order=order)
    assert found["max_difference"] <= TOLERANCE
    assert found["semantics"] == "consensus"
    assert "replay" in found["against"]


def test_the_replay_of_meetings_can_fail() -> None:
    """Slow workers' meetings come in another order; a ledger that tells another one leads elsewhere, or nowhere."""
    run = Run("ad_psgd(draws=3)", 4, 1, steps=6, slow={1: 0.02})
    assert run.replayed(run.ledger) <= TOLERANCE
    own = [i for i, merge in enumerate(run.ledger) if merge.at == merge.worker and merge.read > 1][-1]
    older = replace(run.ledger[own], read=run.ledger[own].read - 1)
    assert run.replayed((*run.ledger[:own], older, *run.ledger[own + 1 :])) > 1e-6
    with pytest.raises(ProgramError, match="no run"):
        run.replayed((replace(run.ledger[own], read=10**6), *run.ledger[:own], *run.ledger[own + 1 :]))


def test_meetings_conserve_the_sum_and_bring_all_together(task: Task, graph: Graph) -> None:
    """DP-22: zero gradients; in any order of meetings the sum stays (1e-10), and all end at the mean."""
    plan = call("ad_psgd", graph, cluster_of(SIZE))
    for rounds in (1, 4):
        ranks, began = drifting(task, graph, plan, rounds)
        now = weights(ranks, Space.ANCHOR)
        assert float((now.sum(0) - began.sum(0)).abs().max()) <= 1e-10
        assert float((now - began).abs().max()) > 1e-2
    assert float((now - began.mean(0)).abs().max()) <= 1e-3 * float(began.std(0).max())


@pytest.mark.slow
def test_ten_thousand_meetings_end(task: Task, graph: Graph) -> None:
    """DP-22: 10,000 random pairs among eight workers, no deadlock, the sum conserved."""
    plan = call("ad_psgd(draws=50)", graph, cluster_of(8))
    ranks, began = drifting(task, graph, plan, 50)
    assert len(averagings_of(Gossip(draws=50), 8)) * 50 == 10_000
    assert sum(len(rank.state.ledger.merges) for rank in ranks) == (10_000 + 4 * 2500) * len(ranks[0].program.trained)
    assert float((weights(ranks, Space.ANCHOR).sum(0) - began.sum(0)).abs().max()) <= 1e-10


def test_every_even_rank_asks_an_odd_one() -> None:
    met = averagings_of(Gossip(draws=400, seed=2), 6)
    assert len(met) == 3 * 400
    assert {(one.active % 2, one.passive % 2) for one in met} == {(0, 1)}
    for asked in (1, 3, 5):
        assert sum(one.passive == asked for one in met) == pytest.approx(400, abs=60)


def seconds(text: str, *speeds: float) -> float:
    """Of a step; unequal workers at one fast switch."""
    devices = tuple(Device(cores=1.0, speed=speed) for speed in speeds)
    place, graph = Cluster("unequal", Group("root", devices, (Link(1e9, 0.0),) * len(devices))), layers(6, batch=24)
    program = program_by(text, graph, place)
    return simulate(program, priced(graph, place, batches_of(program)), rounds=4).step_seconds


@pytest.mark.parametrize("slow", [0, 1])
def test_a_straggler_costs_its_own_share_only(slow: int) -> None:
    """DP-22: one of four workers four times slower, one that asks or is asked: the others' throughput is unchanged
    (5 %), where an all-reduce falls to a quarter."""
    speeds = [1.0] * 4
    full, lockstep = seconds("ad_psgd", *speeds), seconds("ddp", *speeds)
    speeds[slow] = 0.25
    assert seconds("ad_psgd", *speeds) == pytest.approx(full * 4 / 3.25, rel=0.05)
    assert seconds("ddp", *speeds) == pytest.approx(lockstep * 4, rel=0.05)


def test_what_is_not_there_is_refused(graph: Graph) -> None:
    plan = call("ad_psgd", graph, cluster_of(SIZE))
    pulled = replace(plan, sync=(replace(plan.sync[0], through=Gossip("pull")),))
    with pytest.raises(LoweringError, match="stale or partial agreement"):
        lower(graph, pulled, cluster_of(SIZE))
