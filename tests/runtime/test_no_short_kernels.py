"""Operators that processors have no kernel for in half precision are computed in the wide one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from partita.oracles.check import checked
from partita.recipes.catalogue import call
from tests.small import cluster_of, perceptron

CALLS: dict[str, Callable[[Tensor], Tensor]] = {  # of what a layer makes, for 8 samples 16 numbers each
    "avg_pool3d": lambda x: F.avg_pool3d(x.view(-1, 1, 4, 2, 2), 2),
    "local_response_norm": lambda x: F.local_response_norm(x.view(-1, 4, 4), 2),
    "bilinear": lambda x: F.interpolate(x.view(-1, 1, 4, 4), size=3, mode="bilinear", antialias=True),
    "bicubic": lambda x: F.interpolate(x.view(-1, 1, 4, 4), size=3, mode="bicubic", antialias=True),
    "cdist": lambda x: torch.cdist(x.view(-1, 4, 4), x.view(-1, 4, 4).flip(1), p=1.0),
    "log_ndtr": torch.special.log_ndtr,
    "erfcx": lambda x: torch.special.erfcx(x.abs()),
}


class Called(nn.Module):
    def __init__(self, call: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.call, self.first, self.last = call, nn.Linear(6, 16), nn.LazyLinear(3)
        self(torch.zeros(2, 6))

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.last(self.call(self.first(x)).flatten(1)))


def margin(model: nn.Module, batch: list[Tensor]) -> Tensor:
    return F.multi_margin_loss(model(batch[0]), batch[1])


def margins(model: nn.Module, batch: list[Tensor]) -> Tensor:
    return F.multilabel_margin_loss(model(batch[0]), F.one_hot(batch[1], 3) * 3 - 1)


def apart(model: nn.Module, batch: list[Tensor]) -> Tensor:
    return F.pdist(model(batch[0])).mean()


@pytest.mark.parametrize("plan", ["ddp(precision=bf16)", "ddp(precision=fp16)"])
@pytest.mark.parametrize("name", CALLS)
def test_layers(name: str, plan: str) -> None:
    task, machines = replace(perceptron(), name=name, model=lambda: Called(CALLS[name])), cluster_of(2)
    found = checked(task, lambda graph: call(plan, graph, machines), machines)
    assert (found["equal"], found["because"]) == (True, "")


@pytest.mark.parametrize("loss", [margin, margins, apart])
def test_losses(loss: Callable[[nn.Module, list[Tensor]], Tensor]) -> None:
    task, machines = replace(perceptron(), name=loss.__name__, loss=loss), cluster_of(2)
    plan = "single(precision=bf16)" if loss is apart else "ddp(precision=bf16)"
    found = checked(task, lambda graph: call(plan, graph, machines), machines)
    assert (found["equal"], found["because"]) == (True, "")
