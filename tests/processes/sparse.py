"""Logistic regression on sparse samples: of 1,000 features ten in a sample are not zero (density 1 %), or all are."""

from __future__ import annotations

import torch
from torch import nn

from partita.task import Task

FEATURES, SAMPLES = 1000, 2048


class Sparse(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    def __init__(self, density: float) -> None:
        draw = torch.Generator().manual_seed(11)
        there = torch.rand(SAMPLES, FEATURES, generator=draw) < density
        self.x = torch.randn(SAMPLES, FEATURES, generator=draw) * there / (density * FEATURES) ** 0.5
        self.y = (self.x @ torch.randn(FEATURES, generator=draw) > 0).float()

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.x[index], self.y[index]


def _task(density: float) -> Task:
    return Task(
        name="sparse",
        model=lambda: nn.Linear(FEATURES, 1, bias=False),
        loss=lambda model, batch: nn.functional.binary_cross_entropy_with_logits(model(batch[0])[:, 0], batch[1]),
        data=Sparse(density),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=4.0),
        batch_size=8,
    )


def sparse() -> Task:
    return _task(0.01)


def dense() -> Task:
    return _task(1.0)
