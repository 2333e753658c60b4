"""Samples, models and losses whose numbers are not all of one kind are trained as plain PyTorch trains them."""

from __future__ import annotations

from collections import UserDict
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from partita.errors import LoweringError, PlanError, TaskError
from partita.lowering.lower import lower
from partita.oracles.check import checked
from partita.recipes.catalogue import call
from partita.runs.assembly import train_in_process
from partita.runtime.workload import Workload
from partita.task import Task
from partita.tracing import capture as tracing
from tests.captures import capture
from tests.small import Numbers, cluster_of, perceptron


class Turning(nn.Module):
    """Rotary: a buffer of complex numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)
        self.register_buffer("turns", torch.polar(torch.ones(4), torch.arange(4) * 0.7))

    def forward(self, x: Any) -> Any:
        pairs = torch.view_as_complex(self.first(x).unflatten(-1, (4, 2)))
        return self.last(torch.view_as_real(pairs * self.turns).flatten(-2))


class Wide(Numbers):
    """Samples in fp64, as numpy has them."""

    def __init__(self) -> None:
        super().__init__()
        self.x = self.x.double()


class Tokens(UserDict[str, Any]):
    """What a tokenizer's collator returns: a mapping, no dict."""


def gathered(samples: list[Any]) -> Tokens:
    return Tokens(x=torch.stack([x for x, _ in samples]), y=torch.stack([y for _, y in samples]))


def wide_loss(model: Any, batch: Any) -> Any:
    return F.cross_entropy(model(batch[0]).float(), batch[1])


@dataclass
class Pair:
    """A batch as a class of one's own."""

    x: torch.Tensor
    y: torch.Tensor


def paired(samples: list[Any]) -> Pair:
    return Pair(torch.stack([x for x, _ in samples]), torch.stack([y for _, y in samples]))


TASKS = {
    "dataclass": partial(
        replace,
        perceptron(),
        collate=paired,
        loss=lambda model, batch: F.cross_entropy(model(batch.x), batch.y),
    ),
    "complex": partial(replace, perceptron(), model=Turning),
    "wide samples": partial(replace, perceptron(), data=Wide()),
    "mapping": partial(
        replace,
        perceptron(),
        collate=gathered,
        loss=lambda model, batch: F.cross_entropy(model(batch["x"]), batch["y"]),
    ),
}


def trained(task: Task, plan: str, size: int, steps: int = 3) -> dict[str, torch.Tensor]:
    graph, machines = capture(task), cluster_of(size)
    states, _ = train_in_process(Workload(task, graph), call(plan, graph, machines), machines, steps)
    return states[0].leaves


@pytest.mark.parametrize("name", TASKS)
def test_it_is_trained_as_plain_pytorch_trains_it(name: str) -> None:
    task = TASKS[name](name=name)
    torch.manual_seed(0)
    model = task.model()
    optimizer = task.optimizer(model.parameters())
    order = torch.randperm(len(task.data), generator=torch.Generator().manual_seed(0))
    for k in range(3):
        samples = [task.data[int(i)] for i in order[12 * k : 12 * (k + 1)]]
        x, y = torch.stack([x for x, _ in samples]).float(), torch.stack([y for _, y in samples])
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    ours = trained(task, "ddp(microbatches=2)", 2)
    assert all(torch.allclose(ours[name], p, rtol=1e-4, atol=1e-6) for name, p in model.named_parameters())
    assert checked(task, lambda graph: call("ddp", graph, cluster_of(2)), cluster_of(2))["equal"]


@pytest.mark.parametrize("precision", ["bf16", "fp64"])
@pytest.mark.parametrize("plan", ["ddp(microbatches=3)", "gpipe(stages=2,microbatches=2)"])
def test_a_loss_may_be_of_another_precision_than_its_model(precision: str, plan: str) -> None:
    task = replace(perceptron(), loss=wide_loss, precision=precision, name=f"loss-{precision}")
    assert all(leaf.isfinite().all() for leaf in trained(task, plan, 2).values())


def test_codecs_of_short_numbers_are_refused() -> None:
    graph, machines = capture(replace(perceptron(), precision="bf16", name="short")), cluster_of(2)
    with pytest.raises(LoweringError, match="half precision with codecs"):
        lower(graph, call("ddp(codec=topk)", graph, machines), machines)


class Counting(nn.Linear):
    count = 0

    def forward(self, x: Any) -> Any:
        self.count += 1
        return super().forward(x) / float(self.count)


def test_what_a_model_counts_is_found_in_any_precision() -> None:
    task = replace(perceptron(), model=lambda: Counting(6, 3), precision="bf16", name="counting")
    assert tracing.capture(task).rung == "opaque"


def test_a_bound_that_bounds_nothing_is_refused() -> None:
    with pytest.raises(TaskError, match="give a bound above 0"):
        replace(perceptron(), clip_norm=float("inf"))


class Spectral(nn.Module):
    """What no kernel computes in half precision: complex numbers, Fourier's transform, distances."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Any) -> Any:
        made = self.first(x).float()
        turned = torch.view_as_real(torch.view_as_complex(made.unflatten(-1, (4, 2))) * 0.5).flatten(-2)
        waves = torch.fft.rfft(made, dim=-1).abs().sum(-1, keepdim=True)
        return self.last((turned + waves + torch.cdist(made, torch.eye(8))).to(self.last.weight.dtype))


@pytest.mark.parametrize("model", [Turning, Spectral])
def test_half_precision_leaves_alone_what_has_no_kernel_for_it(model: Any) -> None:
    task = replace(perceptron(), name=f"half-{model.__name__}", model=model)
    graph, cluster = capture(task), cluster_of(2)
    states, _ = train_in_process(Workload(task, graph), call("ddp(precision=bf16)", graph, cluster), cluster, 2)
    assert all(leaf.isfinite().all() for leaf in states[0].leaves.values() if leaf.is_floating_point())


def test_a_model_that_takes_groups_of_samples_only_trains_on_one_device() -> None:
    def listwise(model: Any, batch: Any) -> Any:
        return F.cross_entropy(model(batch[0]).view(len(batch[0]) // 4, -1), batch[1][::4])

    task = replace(perceptron(), name="listwise", loss=listwise)
    graph = capture(task)
    assert (graph.rung, graph.symbolic, graph.batch) == ("dispatch", False, 12)
    assert checked(task, lambda graph: call("single", graph, cluster_of(1)), cluster_of(1), steps=2)["equal"]
    with pytest.raises(PlanError, match="captured for 12 samples: it is not one step for any number"):
        lower(graph, call("ddp", graph, cluster_of(2)), cluster_of(2))
