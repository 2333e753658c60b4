"""Models that no trace can follow: each sample goes its own way, lengths differ, samples lie side by side."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from partita.task import Task
from tests.small import Numbers, perceptron


class Branching(nn.Module):
    """Routes each sample by its own value; a layer is frozen, one is used by few samples, a buffer counts batches."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.left, self.right = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.last, self.drop = nn.Linear(8, 3), nn.Dropout(0.2)
        self.right.weight.requires_grad_(False)
        self.first.weight.register_hook(lambda gradient: gradient * 0.5)
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x: Any) -> Any:
        self.steps += 1
        ways = [self.left(row) if row.sum().item() > 3 else self.right(row) for row in self.drop(F.relu(self.first(x)))]
        return self.last(torch.stack(ways)) / self.steps.sqrt()


def branching() -> Task:
    """A bounded norm and a rate that falls on top of it."""
    return replace(
        perceptron(), name="branching", model=Branching, clip_norm=0.5,
        schedule=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5),
    )  # fmt: skip


class Ragged(Numbers):
    """Samples of 2 to 6 numbers."""

    def __getitem__(self, index: int) -> Any:
        x, y = super().__getitem__(index)
        return x[: 2 + index % 5], y


def padded_to_longest(samples: list[Any]) -> Any:
    """Numbers padded to the longest of a batch, how many each has as plain ints, classes."""
    rows = [x for x, _ in samples]
    return {
        "x": nn.utils.rnn.pad_sequence(rows, batch_first=True), "lengths": [len(x) for x in rows],
        "y": torch.stack([y for _, y in samples]),
    }  # fmt: skip


def mean_of_each(model: Any, batch: Any) -> Any:
    """The loss and its weight, by classes of the means that the first `length` numbers have."""
    means = [model[0](x[:length, None]).mean(0) for x, length in zip(batch["x"], batch["lengths"], strict=True)]
    losses = F.cross_entropy(model[1](torch.stack(means)), batch["y"], reduction="none")
    lengths = torch.tensor(batch["lengths"])
    return (losses * lengths).sum(), lengths.sum()


def ragged() -> Task:
    return replace(
        perceptron(), name="ragged", model=lambda: nn.Sequential(nn.Linear(1, 5), nn.Linear(5, 3)), data=Ragged(),
        loss=mean_of_each, collate=padded_to_longest,
    )  # fmt: skip


class Jagged(nn.Module):
    """Takes of each sample as many numbers as are above 0, and one, side by side in a tensor that wraps them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(1, 8), nn.Linear(8, 3)

    def forward(self, x: Any) -> Any:
        rows = [row[: 1 + int((row > 0).sum())].unsqueeze(1) for row in x]
        jagged = torch.nested.as_nested_tensor(rows, layout=torch.jagged)
        return self.last(F.relu(self.first(jagged)).to_padded_tensor(0.0).sum(1))


def jagged() -> Task:
    return replace(perceptron(), name="jagged", model=Jagged)
