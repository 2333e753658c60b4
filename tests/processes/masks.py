"""A task that tells which of its numbers were dropped: a step of rate 1 moves each weight by what is left of it."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from partita.task import Task
from tests.small import perceptron

SIZE = 64


class Ones(nn.Module):
    """Drops half of its weights for each sample."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(SIZE))
        self.drop = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(self.weight.expand(len(x), SIZE))


def masks() -> Task:
    """Minibatches of two samples."""
    return replace(
        perceptron(), name="masks", model=Ones, loss=lambda model, batch: model(batch[0]).sum(1).mean(), batch_size=2,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1.0),
    )  # fmt: skip
