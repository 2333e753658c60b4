"""A small task that tells through a pipe when a rank has trained for a while; workers load it as a file."""

from __future__ import annotations

import os
import time

import torch
from torch import nn

from partita.task import Task

WHILE = 2.0  # seconds; workers report their step twice a second


class Told(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Samples of noise; a worker that still loads them after a while writes its rank to the pipe, once."""

    def __init__(self) -> None:
        self.begun = self.told = 0.0

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if "RANK" in os.environ and not self.told:
            self.begun = self.begun or time.monotonic()
            if time.monotonic() - self.begun > WHILE:
                self.told = time.monotonic()
                with open(os.environ["TOLD"], "wb", buffering=0) as pipe:
                    pipe.write(os.environ["RANK"].encode())
        return torch.full((4,), float(index) / 64), torch.tensor(index % 2)


def endless() -> Task:
    """Logistic regression."""
    return Task(
        name="endless",
        model=lambda: nn.Linear(4, 2),
        loss=lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1]),
        data=Told(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
        batch_size=8,
    )
