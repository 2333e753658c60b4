"""A weight that no sample of a minibatch reaches is left out of the step, by the plan as by plain PyTorch."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from partita.oracles.check import TOLERANCE, checked, difference
from partita.recipes.catalogue import call
from partita.runs.assembly import train_in_process
from partita.runtime.feed import Feed
from partita.runtime.neutral import left_out, missing, neutral, reached
from partita.runtime.workload import Workload
from partita.task import Task
from tests.captures import capture
from tests.small import cluster_of, perceptron


class Unused(nn.Module):
    """A layer that nothing calls."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.never = nn.Linear(6, 3), nn.Linear(5, 2)

    def forward(self, x: Any) -> Any:
        return self.used(x)


class Rare(nn.Module):
    """Routes samples by their values; few batches have one that goes to the right, none to the last."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.never = nn.Linear(6, 3), nn.Linear(6, 3), nn.Linear(6, 3)

    def forward(self, x: Any) -> Any:
        ways = [self.right if row[0].item() > 1.5 else self.never if row[0].item() > 99 else self.left for row in x]
        return torch.stack([way(row) for way, row in zip(ways, x, strict=True)])


def task_of(model: Any) -> Task:
    """Decay, and moments that go on without gradients."""
    return replace(perceptron(), model=model, optimizer=partial(torch.optim.AdamW, lr=0.01, weight_decay=0.5))


CASES = [(Unused, plan, 2) for plan in ("ddp", "zero1", "ps_sync", "local_sgd(period=2)", "ddp(codec=topk)",
                                        "ddp(precision=bf16)", "ddp(codec=powersgd)", "easgd")]  # fmt: skip
CASES += [(Rare, plan, 3) for plan in ("single", "ddp(microbatches=2)", "zero1", "zero3", "ps_sync", "ps_async",
                                       "softsync", "pipe_sgd", "local_sgd(period=2)", "ddp(codec=topk)")]  # fmt: skip


@pytest.mark.parametrize(("model", "plan", "ranks"), CASES)
def test_a_plan_equals_its_serial_training(model: Any, plan: str, ranks: int) -> None:
    machines = cluster_of(ranks)
    found = checked(task_of(model), lambda graph: call(plan, graph, machines), machines)
    assert found["equal"], found


def test_the_weights_are_those_of_a_plain_loop() -> None:
    """Ten steps of a third of the data's rare samples, against a loop with zero_grad, backward and step."""
    task, machines = task_of(Rare), cluster_of(3)
    graph = capture(task, precision="fp64")
    assert graph.rung == "opaque"
    states, _ = train_in_process(Workload(task, graph, precision="fp64"), call("ddp", graph, machines), machines, 10)
    torch.manual_seed(0)
    model = task.model().double()
    optimizer, feed, skipped = task.optimizer(model.parameters()), Feed(task, 0), []
    for step in range(10):
        x, y = feed.leaves(feed.positions(step, 0, task.batch_size), "cpu", torch.float64)
        optimizer.zero_grad()
        task.loss(model, (x, y)).backward()
        skipped.append(model.right.weight.grad is None)
        optimizer.step()
    assert 0 < sum(skipped) < 10
    assert difference(states[0].leaves, dict(model.named_parameters())) <= TOLERANCE


def test_a_gradient_of_zeros_is_none_that_is_missing() -> None:
    nobody, zeros = neutral(torch.ones(3)), reached(-torch.zeros(3))
    assert missing([nobody, zeros, nobody + zeros, nobody + nobody, torch.ones(0)]) == [True, False, False, True, False]
    assert left_out([zeros * 0.5 + nobody])[0] is not None
    assert left_out([nobody * 0.5 + nobody]) == [None]
