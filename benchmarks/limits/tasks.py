"""A perceptron of 270 MB of weights, gradients and moments, and a tiny one."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from partita.task import Task
from partita.zoo.data import Synthetic
from partita.zoo.tasks import classify


def vectors(width: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(width, generator=generator), torch.randint(0, 10, (), generator=generator)


def deep(width: int) -> nn.Module:
    inner = [layer for _ in range(4) for layer in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*inner, nn.Linear(width, 10))


def task_of(width: int) -> Task:
    data = Synthetic(1024, partial(vectors, width))
    return Task(f"wide-{width}", partial(deep, width), classify, data, torch.optim.Adam, batch_size=64)


def wide() -> Task:
    return task_of(2048)


def narrow() -> Task:
    return task_of(8)
