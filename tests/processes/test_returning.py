"""Killed processes in plans that wait for nobody: the others go on, and who is started again joins them."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import load_file

from partita import api
from partita.errors import RunError
from partita.oracles.check import TOLERANCE, difference
from partita.oracles.reference import fresh
from partita.oracles.replay import replayed
from partita.program.ledger import LOST
from partita.recipes.catalogue import call
from partita.report.record import read_record
from partita.runtime.leg import legs
from partita.tracing.capture import capture
from tests.processes.returning import returning

TASK = "tests/processes/returning.py:returning"
STEPS = 80
SERVED = ("ps_async", "ssp(staleness=3)", "easgd(servers=1,period=2)")
APART = ("diloco(period=4)", "easgd(period=2)", "gossip(draws=2)", "ad_psgd(draws=2)")


class Run:
    """A run of four processes, and its notes."""

    def __init__(self, plan: str, out: Path, steps: int = STEPS) -> None:
        self.machines, self.notes, self.plan, self.steps = api.cluster_of("local:4"), list[str](), plan, steps
        done = api.train(TASK, plan, self.machines, steps=steps, seed=3, out=str(out), tell=self.notes.append)
        assert done is not None
        measured = read_record(out).rows[0].measured
        assert measured is not None
        self.loss, self.weights, self.ledger = done.final_loss, load_file(done.weights_path), measured.ledger

    def turns(self, worker: int) -> list[int]:
        return [merge.turn for merge in self.ledger if merge.worker == worker and merge.applied != LOST]

    def apart(self) -> float:
        """How far the weights are from the replay of the ledger."""
        task = returning()
        graph = capture(task)
        parts = legs(graph, call(self.plan, graph, self.machines), self.machines, self.steps)
        return difference(self.weights, replayed(fresh(task, seed=3, precision="fp64"), parts, self.ledger))

    def says(self, what: str) -> list[str]:
        return [note for note in self.notes if what in note]


@pytest.mark.parametrize("plan", [SERVED[0], *(pytest.param(plan, marks=pytest.mark.slow) for plan in SERVED[1:])])
def test_a_killed_worker_of_servers_comes_back(plan: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FAULTS 16: SIGKILL; the others bring all of theirs, it brings the rest from where they are when it is back, and
    the weights are the replay of the ledger."""
    monkeypatch.setenv("KILL", "1:act:40")
    monkeypatch.setenv("ONCE", str(tmp_path / "died"))
    run = Run(plan, tmp_path / "out")
    assert run.says("rank 1 was killed by SIGKILL") == run.says("started again") != []
    assert run.says("rank 1 is back"), run.notes
    all_of_them = list(range(STEPS // 2 if "period" in plan else STEPS))
    assert run.turns(0) == run.turns(2) == all_of_them
    mine = run.turns(1)
    lost = [turn for turn in all_of_them if turn not in mine]
    assert lost == list(range(lost[0], lost[-1] + 1)), "more than what it was away for"
    assert mine[-1] == all_of_them[-1], run.notes
    assert run.apart() <= TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("plan", APART)
def test_a_killed_worker_among_replicas_comes_back(plan: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FAULTS 16: the run ends, and its loss is within 5 % of that of a run in which nobody dies."""
    whole = Run(plan, tmp_path / "whole")
    monkeypatch.setenv("KILL", "1:act:60")
    monkeypatch.setenv("ONCE", str(tmp_path / "died"))
    run = Run(plan, tmp_path / "out")
    assert run.says("rank 1 was killed by SIGKILL") == run.says("started again") != []
    assert run.says("rank 1 is back"), run.notes
    assert run.loss == pytest.approx(whole.loss, rel=0.05)


@pytest.mark.slow
def test_one_that_dies_again_and_again_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FAULTS 11, 16."""
    monkeypatch.setenv("KILL", "1:act:9")
    run = Run("ps_async", tmp_path / "out", steps=2000)
    assert 0 < len(run.says("started again")) <= 3
    assert run.turns(0) == run.turns(2) == list(range(2000))
    assert run.apart() <= TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize(("plan", "rank"), [("ps_async", 3), ("ps_async", 0), ("ps_sync", 1), ("diloco(period=4)", 0)])
def test_a_run_ends_with_whom_it_cannot_do_without(
    plan: str, rank: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FAULTS 15: the server, who keeps the store, and any worker of an exact plan."""
    monkeypatch.setenv("KILL", f"{rank}:act:40")
    with pytest.raises(RunError, match=f"rank {rank} was killed by SIGKILL") as failed:
        Run(plan, tmp_path / "out", steps=20)
    assert failed.value.exit_code == 3
