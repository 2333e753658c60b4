"""Killed processes of servers that others have copies of: their parts are played to the end, and nothing is lost."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from safetensors.torch import load_file

from partita import api
from partita.errors import RunError

TASK = "tests/processes/returning.py:returning"
STEPS, WORKERS = 40, 2
PAIR, TWO, THREE = (
    "ps_replicated(bucket_bytes=400)",
    "ps_replicated(servers=2,bucket_bytes=200)",
    "ps_replicated(replicas=3)",
)


class Run:
    """A run of so many processes, its notes, and the weights that it ends with."""

    def __init__(self, plan: str, size: int, out: Path) -> None:
        self.notes = list[str]()
        machines = api.cluster_of(f"local:{size}")
        done = api.train(TASK, plan, machines, steps=STEPS, seed=3, out=str(out), tell=self.notes.append)
        assert done is not None
        self.weights, self.loss = load_file(done.weights_path), done.loss

    def says(self, what: str) -> list[str]:
        return [note for note in self.notes if what in note]


@cache
def unharmed(plan: str, size: int) -> Run:
    with TemporaryDirectory() as out, pytest.MonkeyPatch.context() as patch:
        patch.delenv("KILL", raising=False)
        return Run(plan, size, Path(out))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plan", "size", "kill"),
    [
        (PAIR, WORKERS + 2, "2:act:3"),
        (PAIR, WORKERS + 2, "2:act:60"),
        (PAIR, WORKERS + 2, "2:act:401"),
        (PAIR, WORKERS + 2, "3:act:60"),
        (PAIR, WORKERS + 2, "3:act:222"),
        (TWO, WORKERS + 4, "3:act:77"),
        (TWO, WORKERS + 4, "2:act:50 5:act:90"),
        (THREE, WORKERS + 3, "3:act:77"),
        (THREE, WORKERS + 3, "2:act:40 3:act:90"),
        (THREE, WORKERS + 3, "4:act:60 2:act:70"),
    ],
)
def test_no_answered_update_of_a_killed_server_is_lost(
    plan: str, size: int, kill: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FT-02, FAULTS 15: SIGKILL; weights and losses are bit for bit those of a run without failure, so that each step
    was made once."""
    whole = unharmed(plan, size)
    monkeypatch.setenv("KILL", kill)
    run = Run(plan, size, tmp_path)
    for rank in (one.partition(":")[0] for one in kill.split()):
        assert run.says(f"rank {rank} was killed by SIGKILL")
    assert len(run.says("another of its chain plays its part")) == len(kill.split())
    assert all(torch.equal(run.weights[name], whole.weights[name]) for name in whole.weights)
    assert [loss for _, _, loss in run.loss] == [loss for _, _, loss in whole.loss]


@pytest.mark.slow
def test_a_run_ends_with_the_last_of_a_chain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: nobody is left who has what it had."""
    monkeypatch.setenv("KILL", "2:act:40 3:act:90")
    with pytest.raises(RunError, match="was killed by SIGKILL") as failed:
        Run(PAIR, WORKERS + 2, tmp_path)
    assert failed.value.exit_code == 3
