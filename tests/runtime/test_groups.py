"""A weight is in the group that the optimizer of the whole model puts it into, however a plan cuts the model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from partita.errors import TaskError
from partita.oracles.check import TOLERANCE, checked
from partita.recipes.catalogue import call
from tests.captures import capture
from tests.small import cluster_of, perceptron


def by_place(parameters: Any) -> torch.optim.Optimizer:
    """A slow backbone and a fast head."""
    every = list(parameters)
    groups = [{"params": every[:2], "lr": 0.01}, {"params": every[2:]}]
    return torch.optim.SGD(groups, lr=0.3, momentum=0.9)


def by_dimensions(parameters: Any) -> torch.optim.Optimizer:
    """No decay of biases and norms, as language models are trained."""
    every = list(parameters)
    groups = [
        {"params": [p for p in every if p.dim() > 1], "weight_decay": 0.5},
        {"params": [p for p in every if p.dim() <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=0.01, eps=1e-4)


PLANS = ("ddp", "ddp(bucket_bytes=200)", "zero1", "zero3", "ps_sync(bucket_bytes=200)", "ps_async", "gpipe(stages=2)")


@pytest.mark.parametrize("plan", [*PLANS, "local_sgd(period=2)", "ddp(rule=lars)", "zero1(precision=bf16)"])
@pytest.mark.parametrize("optimizer", [by_place, by_dimensions])
def test_groups_are_the_whole_models(optimizer: Callable[[Any], torch.optim.Optimizer], plan: str) -> None:
    machines, task = cluster_of(2), replace(perceptron(), optimizer=optimizer)
    found = checked(task, lambda graph: call(plan, graph, machines), machines)
    assert found["max_difference"] <= found["tolerance"] <= max(TOLERANCE, 1e-2)


def test_an_optimizer_that_refuses_the_weights_is_one_sentence() -> None:
    def matrices_only(parameters: Any) -> torch.optim.Optimizer:
        every = list(parameters)
        if any(p.dim() != 2 for p in every):
            raise ValueError("matrices only")
        return torch.optim.SGD(every, lr=0.1)

    task = replace(perceptron(), model=lambda: nn.Linear(6, 3), optimizer=matrices_only)
    with pytest.raises(TaskError, match=r"could not be made for the model's parameters \(ValueError: matrices only\)"):
        capture(task)
