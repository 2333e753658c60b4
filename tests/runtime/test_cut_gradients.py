"""Gradients that are no operator's, and values whose memory is one number, in pipelines cut at every operator."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from partita.oracles.check import TOLERANCE, checked
from partita.plan.schedule import Order
from partita.task import Task
from tests.captures import capture
from tests.runtime.test_stages import cut_at
from tests.small import cluster_of

Batch = tuple[Tensor]


class Tempered(nn.Module):
    """[n, 6] -> [n], by two temperatures that a layer reads each, and the loss both."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 5), nn.Linear(5, 1)
        self.heat, self.cold = nn.Parameter(torch.zeros(())), nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.last(torch.tanh(self.first(x) * self.heat.exp()))
        return found.squeeze(-1) * self.cold.exp()


def bounded(model: Tempered, batch: Batch) -> Tensor:
    """What seeds backward is one part of a temperature's gradient, the last layer's or the first one's the other."""
    return F.softplus(model(batch[0])).mean() + model.heat + model.cold


def summed(model: Tempered, batch: Batch) -> tuple[Tensor, Tensor]:
    """The gradient of each sample's value is one number, over all samples."""
    found = model(batch[0])
    return found.sum() + model.heat * len(found), torch.tensor(float(len(found)))


@pytest.mark.parametrize("loss", [bounded, summed])
def test_every_cut_trains_as_one_process(loss: Callable[..., Tensor]) -> None:
    data = TensorDataset(torch.randn(16, 6, generator=torch.Generator().manual_seed(0)))
    task = Task("tempered", Tempered, loss, data, partial(torch.optim.SGD, lr=0.05), batch_size=8)
    machines = cluster_of(2)
    for position in range(1, capture(task).forward_length):
        found = checked(task, lambda graph, at=position: cut_at(graph, [at], Order.ZERO_BUBBLE, 2), machines, steps=1)
        assert found["max_difference"] <= TOLERANCE, position
