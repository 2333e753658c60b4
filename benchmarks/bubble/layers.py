"""A balanced pipeline: equal linear layers, of which forward, what backward hands on and the weights' gradient cost the
same. Its rows are noise."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

import torch
from torch import Tensor, nn

from partita.task import Task
from partita.zoo.tasks import classify

LAYERS: Final = 32
WIDTH: Final = 512
ROWS: Final = 1024  # of a microbatch


class Rows:
    """As many rows as a minibatch has, the same whatever is asked for."""

    def __init__(self, count: int) -> None:
        dice = torch.Generator().manual_seed(0)
        self.rows = torch.randn(count, WIDTH, generator=dice)
        self.labels = torch.randint(WIDTH, (count,), generator=dice)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, position: int) -> tuple[Tensor, Tensor]:
        return self.rows[position], self.labels[position]

    def collated(self, positions: Sequence[int]) -> tuple[Tensor, Tensor]:
        return self.rows[: len(positions)], self.labels[: len(positions)]


def layers() -> nn.Module:
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))


def task(microbatches: int) -> Task:
    rows = ROWS * microbatches
    return Task(f"layers-{microbatches}", layers, classify, Rows(rows), partial(torch.optim.SGD, lr=1e-3), rows)


def four() -> Task:
    return task(4)


def eight() -> Task:
    return task(8)
