"""A run that goes on from a checkpoint carries on its ledger: both together are replayed from the first step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from partita.checkpoints.checkpoint import SavePolicy, place_of
from partita.checkpoints.restore import open_checkpoint
from partita.oracles.check import TOLERANCE, difference, gathered, ledger_of
from partita.oracles.reference import fresh
from partita.oracles.replay import replayed
from partita.program.ledger import Merge, steady
from partita.program.space import Space
from partita.recipes.catalogue import call
from partita.runs.assembly import train_in_process
from partita.runtime.leg import legs
from partita.runtime.workload import Workload
from tests.captures import capture
from tests.runtime.dying import Death, Dying
from tests.small import cluster_of, perceptron


def fading(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.7)


@pytest.mark.parametrize(("plan", "size", "cut"), [
    ("easgd(servers=1,period=2,rate=0.2,bucket_bytes=400)", 4, 4),
    ("eamsgd(servers=2,period=1,bucket_bytes=200)", 5, 3),
    ("admm(need=2,period=2,bucket_bytes=400)", 4, 4), ("admm(need=1,period=1,penalty=1.0,staleness=3)", 4, 5),
    ("ps_async(bucket_bytes=400)", 4, 3), ("ps_async(own=false,servers=2,bucket_bytes=200)", 3, 4),
    ("ssp(codec=topk(ratio=0.3),bucket_bytes=400)", 4, 5), ("downpour(push=2,fetch=2)", 3, 4),
    ("backup_workers(bucket_bytes=400)", 4, 3), ("ad_psgd(draws=2,bucket_bytes=400)", 4, 4), ("hogwild", 3, 4),
])  # fmt: skip
def test_a_run_that_goes_on_is_replayed_with_what_was_read_before(
    plan: str, size: int, cut: int, tmp_path: Path
) -> None:
    """DP-05, DP-09, DP-11, DP-12, DP-19, DP-20, DP-22: versions and turns are the whole run's."""
    task = replace(perceptron(), schedule=fading, name="fading")
    graph, machines = capture(task, precision="fp64"), replace(cluster_of(size), name=f"local:{size}")
    lowered, work = call(plan, graph, machines), Workload(task, graph, precision="fp64", keyed=True)
    keep, steps, ledger = SavePolicy(str(tmp_path), cut), 9, ()
    for end, more in ((cut, {"keep": keep, "slow": {0: 0.1}}), (steps, {"saved": True, "slow": {1: 0.1}})):
        if "saved" in more:
            more["saved"] = open_checkpoint(place_of(tmp_path, cut))
        states, _ = train_in_process(work, lowered, machines, end, order=end, **more)
        ledger += ledger_of(states)
    assert len({(m.at, m.bucket, m.worker, m.turn) for m in ledger}) == len(ledger)
    parts = legs(graph, lowered, machines, steps)
    serial = replayed(fresh(task, seed=0, precision="fp64"), parts, ledger)
    assert difference(gathered(parts[-1].program, states), serial) <= TOLERANCE


def test_what_is_steady_begins_some_turns_after_a_run_goes_on() -> None:
    """Its workers begin at one time, as at first."""
    for first in (0, 7):
        ledger = [Merge("b0", worker, first + turn, 0, 0) for turn in range(4) for worker in range(2)]
        assert {merge.turn for merge in steady(ledger, 2)} == {first + 2}


@pytest.mark.parametrize(("before", "after"), [(3, 4), (4, 3)])
def test_workers_that_begin_at_their_centre_have_read_it(before: int, after: int, tmp_path: Path) -> None:
    """Another number of them than before: nobody is pulled towards where the centre was."""
    plan = "eamsgd(servers=1,period=2)"
    for size, more in ((before, {"keep": SavePolicy(str(tmp_path), 4)}), (after, {"saved": None})):
        if "saved" in more:
            more["saved"] = open_checkpoint(place_of(tmp_path, 4))
        graph, machines = capture(perceptron()), cluster_of(size)
        states, _ = train_in_process(
            Workload(perceptron(), graph), call(plan, graph, machines), machines, 4 if "saved" in more else 8,
            settle=False, **more,
        )  # fmt: skip
    centre = states[after - 1].parameter
    for rank in range(after - 1):
        for name, flat in centre.items():
            assert torch.equal(states[rank].kept[Space.ANCHOR, name], flat)
            assert not states[rank].kept[Space.VELOCITY, name].any()


@pytest.mark.parametrize("plan", ["ps_async(bucket_bytes=400)", "easgd(servers=1,period=1,rate=0.2,bucket_bytes=400)"])
def test_who_comes_back_into_a_run_that_went_on_has_its_turns(plan: str, tmp_path: Path) -> None:
    """FAULTS 16, after a checkpoint: the ledgers of both are replayed, with the turns that were missed."""
    head = Dying(plan, 4, 3, [], task=perceptron(), keep=tmp_path)
    tail = Dying(plan, 4, 9, [Death(1, "S0", 1, 4)], task=perceptron(), saved=place_of(tmp_path, 3), order=1)
    turns = sorted({merge.turn for merge in tail.ledger if merge.worker == 1})
    assert min(turns) == 3
    assert max(turns) == 8
    assert len(turns) < 6
    parts = legs(tail.graph, tail.plan, tail.machines, 9)
    serial = replayed(fresh(perceptron(), seed=0, precision="fp64"), parts, [*head.ledger, *tail.ledger])
    assert difference(gathered(tail.program, tail.states), serial) <= TOLERANCE
