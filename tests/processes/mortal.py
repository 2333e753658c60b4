"""A small task whose ranks die where KILL says; workers load it as a file.

    KILL=1:act:57     rank 1 dies as it is about to carry out its 57th instruction
    KILL=0:save:2     rank 0 dies as it is about to give the second file of a checkpoint its name

SLOW is how many seconds a sample takes to load.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import torch
from torch import nn

from partita.runtime.acts import ACTS
from partita.task import Task
from tests.acts import Do, around


class Slow(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Seeded samples (6 numbers, their class of 3)."""

    def __init__(self) -> None:
        draw = torch.Generator().manual_seed(7)
        self.x, self.y = torch.randn(48, 6, generator=draw), torch.randint(0, 3, (48,), generator=draw)
        self.slow = float(os.environ.get("SLOW", "0"))

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if self.slow:
            time.sleep(self.slow)
        return self.x[index], self.y[index]


def doomed(act: Any, count: int, counts: Any) -> Any:
    """The function, during whose `count`-th call that counts the process dies."""
    left = [count]

    def call(*arguments: Any) -> Any:
        left[0] -= bool(counts(*arguments))
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        return act(*arguments)

    return call


def doom_acts(count: int) -> None:
    """The process dies as it is about to carry out its `count`-th instruction."""
    counted = doomed(lambda: None, count, lambda: True)

    def between(do: Do, *given: Any) -> Any:
        counted()
        return do(*given)

    ACTS.update(around(between))


def mortal() -> Task:
    """A perceptron with batch statistics under Adam."""
    rank, kind, count = os.environ.get("KILL", "-1::0").split(":")
    if rank == os.environ.get("RANK") and kind == "act":
        doom_acts(int(count))
    if rank == os.environ.get("RANK") and kind == "save":
        os.replace = doomed(
            os.replace, int(count), lambda source, target: str(target).endswith((".safetensors", "manifest.json"))
        )
    return Task(
        name="mortal",
        model=lambda: nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3)),
        loss=lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1]),
        data=Slow(),
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
        batch_size=12,
    )
