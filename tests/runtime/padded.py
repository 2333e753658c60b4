"""A small language model on padded sentences, so that parts of a minibatch weigh unequally."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from partita.task import Task

WORDS, LENGTH, PADDING = 13, 6, -100


class Sentences(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """(tokens, the next ones), of 0 to 6 tokens; the first half of the data holds the short ones."""

    def __init__(self, count: int = 24) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        drawn = torch.randint(WORDS, (LENGTH + 1,), generator=torch.Generator().manual_seed(index))
        target = drawn[1:].clone()
        target[index * (LENGTH + 1) // self.count :] = PADDING
        return drawn[:-1], target


def summed(model: Any, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The sum over tokens that are no padding, and their number."""
    loss = F.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten(), ignore_index=PADDING, reduction="sum")
    return loss, (batch[1] != PADDING).sum()


def mean(model: Any, batch: Any) -> torch.Tensor:
    """The same as a mean; what a part of a minibatch would give is no share of the whole."""
    loss, weight = summed(model, batch)
    return loss / weight


def predictor() -> nn.Module:
    """The next word from the last."""
    return nn.Sequential(nn.Embedding(WORDS, 8), nn.Linear(8, 10), nn.Tanh(), nn.Linear(10, WORDS))


def padded(loss: Any = summed, **more: Any) -> Task:
    optimizer = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
    return Task("padded", predictor, loss, Sentences(), optimizer, 12, **more)


def bounded() -> Task:
    """The same with a bound on the norm of the mean gradient."""
    return padded(clip_norm=0.1)
