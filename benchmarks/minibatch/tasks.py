"""A perceptron on real digits that learns by plain steps, so that only the rate is to be tuned for a minibatch."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from partita.task import Task
from partita.zoo.data import digits


def loss(model: nn.Module, batch: Any) -> torch.Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def model() -> nn.Module:
    """64 - 32 - 10 with He's first weights."""
    found = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    for layer in found:
        if isinstance(layer, nn.Linear):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.bias)
    return found


def perceptron() -> Task:
    training, validation = digits()
    optimizer = partial(torch.optim.SGD, lr=0.1)
    return Task("digits-perceptron", model, loss, training, optimizer, batch_size=64, validation=validation)
