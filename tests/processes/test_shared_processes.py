"""Real processes that change the same weights without locks."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from partita import api

TASK = "tests/processes/sparse.py:{}"
STEPS = 512  # two epochs

PUSH = """
import multiprocessing, sys, torch
from partita.kernels.shared import add_racing
from tests.ranks import forked
path, pushes, size, all_there = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), multiprocessing.Barrier(4)
weights = torch.from_file(path, shared=True, size=size, dtype=torch.float32)
add_racing(torch.zeros(1), torch.zeros(1), 0)

def push(worker):
    draw = torch.Generator().manual_seed(worker)
    all_there.wait()
    for _ in range(pushes):
        change = (torch.rand(size, generator=draw) < 0.01).float()
        add_racing(weights, change, 0)

forked(push, 4)
"""


def loss(task: str, plan: str, place: str) -> float:
    done = api.train(TASK.format(task), plan, api.cluster_of(place), steps=STEPS, seed=1)
    assert done is not None
    return done.final_loss


def test_four_processes_learn_as_one() -> None:
    """DP-12: sparse logistic regression (density 1 %): the loss of four processes after as many updates is at most 1.05
    times the serial one's, which is well below where it began."""
    serial, racing = loss("sparse", "single", "local:1"), loss("sparse", "hogwild", "local:4")
    assert serial < 0.55
    assert racing <= 1.05 * serial, (racing, serial)


@pytest.mark.slow
def test_short_weights_and_dense_samples(record_property: Callable[[str, object], None]) -> None:
    """DP-12: Buckwild's weights of 16 bits lose at most 5 %; the gap at density 100 % is reported."""
    serial, short = loss("sparse", "single", "local:1"), loss("sparse", "buckwild", "local:4")
    assert short <= 1.05 * serial, (short, serial)
    record_property("dense serial", loss("dense", "single", "local:1"))
    record_property("dense racing", loss("dense", "hogwild", "local:4"))


def test_writes_without_locks_are_hardly_ever_lost(tmp_path: Path) -> None:
    """DP-12: of four processes' 4 x 500 sparse changes to the same memory at most 1 % are lost, where four copies of it
    would keep a quarter; none is made up."""
    path, size, pushes = tmp_path / "weights", 10_000, 500
    path.write_bytes(bytes(4 * size))
    words = [sys.executable, "-c", PUSH, str(path), str(pushes), str(size)]
    assert subprocess.run(words, timeout=120, check=False).returncode == 0
    given = 0.0
    for worker in range(4):
        draw = torch.Generator().manual_seed(worker)
        given += sum(float((torch.rand(size, generator=draw) < 0.01).sum()) for _ in range(pushes))
    kept = float(torch.from_file(str(path), shared=False, size=size, dtype=torch.float32).sum())
    assert 0.99 * given <= kept <= given
