"""A model as one operator: its Graph says of the step what a traced one says, and refuses what a traced one refuses."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from partita.errors import CaptureError, TaskError
from partita.graph.flops import calls
from partita.graph.graph import Graph, Optimizer
from partita.graph.tensor import Affine, Tensor
from partita.task import Task
from partita.tracing.capture import capture
from partita.tracing.opaque import opaque_graph
from tests.tracing.models import rows, task

REST = Optimizer("SGD", ())


def opaque(given: Task, precision: str = "fp32") -> Graph:
    return opaque_graph(given, 5, precision, REST, "asked for")


class Tied(nn.Module):
    """Tied weights, a frozen layer, a teacher that moves, an unused layer, buffers of both kinds and one that stays."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.again, self.last = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.again.weight = self.first.weight
        self.frozen, self.teacher = (nn.Linear(6, 6).requires_grad_(False) for _ in range(2))
        self.register_buffer("seen", torch.zeros(2, 3))
        self.register_buffer("steps", torch.zeros((), dtype=torch.long), persistent=False)
        self.register_buffer("still", torch.ones(6))

    def forward(self, x: Any) -> Any:
        with torch.no_grad():
            self.teacher.weight.mul_(0.9).add_(self.first.weight, alpha=0.1)
            self.seen += 1
            self.steps += 1
        return self.last(self.again(self.first(x)) - self.teacher(x) + self.frozen(x * self.still))


def summed(model: Any, batch: Any) -> Any:
    return F.cross_entropy(model(batch[0]), batch[1], reduction="sum"), batch[1].numel()


@pytest.mark.parametrize("precision", ["fp32", "fp64"])
@pytest.mark.parametrize("loss", [summed, lambda m, b: summed(m, b)[0] / 4], ids=["weighted", "mean"])
def test_it_says_of_a_step_what_a_traced_one_says(loss: Any, precision: str) -> None:
    given = replace(task("tied", Tied, loss), clip_norm=0.5, batch_size=7)
    ours, traced = opaque(given, precision), capture(given, batch=5, precision=precision)
    assert (ours.rung, traced.rung) == ("opaque", "dispatch")
    for name in ("name", "batch", "inputs", "symbolic", "global_batch", "clip_norm", "samples"):
        assert getattr(ours, name) == getattr(traced, name), name
    for name in ("parameters", "buffers"):
        assert set(getattr(ours, name)) == set(getattr(traced, name)), name
    for name in ("gradients", "mutations"):
        assert _results(ours, name) == _results(traced, name)
    assert ours.tensor(ours.loss) == traced.tensor(traced.loss)
    weights = [graph.weight and graph.tensor(graph.weight).shape for graph in (ours, traced)]
    assert weights[0] == weights[1] == (() if loss is summed else None)
    forward, backward = ours.operators
    assert backward.twin == forward.name


def _results(graph: Graph, name: str) -> dict[str, Tensor]:
    return {key: graph.tensor(ref) for key, ref in getattr(graph, name)}


def test_a_buffer_that_is_changed_behind_its_version_is_a_mutation() -> None:
    def loss(model: Any, batch: Any) -> Any:
        model.running_mean.data.add_(1)
        return model(batch[0]).square().mean()

    model = partial(nn.BatchNorm1d, 6, momentum=0.0)
    assert "running_mean" in dict(opaque(task("behind", model, loss)).mutations)


def test_what_a_step_calls_and_keeps() -> None:
    """Forward: a product and a sum; backward: its seed and two gradients. Of what is kept samples alone are no weight;
    a weight's own gradient, which the user has, is none of it."""
    model = nn.Linear(6, 3)
    model.weight.grad = torch.ones(3, 6)
    graph = opaque(task("linear", lambda: model, lambda m, b: m(b[0]).sum()))
    assert [calls(o) for o in graph.operators] == [2, 3]
    assert graph.operators[0].outputs[-1] == Tensor((Affine(6 * 4),), "uint8")


def laid(samples: list[Any]) -> Any:
    """Leaves that follow the samples in different ways."""
    x = torch.stack([x for x, _ in samples])
    count = len(x)
    return {
        "rows": x, "flat": x.flatten(), "pairs": x[1:] - x[:-1], "still": torch.ones(7), "longest": x[:, : 2 * count],
        "cubes": torch.zeros(count**3), "falling": torch.zeros(9 - count), "turned": x.T,
    }  # fmt: skip


def test_leaves_follow_the_samples_as_two_batches_tell() -> None:
    found = opaque(task("laid", lambda: nn.Linear(6, 3), lambda m, b: m(b["rows"]).mean(), collate=laid)).inputs
    shapes = [tensor.shape for _, tensor in found]
    assert shapes[:4] == [(Affine(1), 6), (Affine(6),), (Affine(1, -1), 6), (7,)]
    assert shapes[4:] == [(Affine(1), Affine(2)), (27,), (7,), (6, Affine(1))]


def test_a_weight_that_does_not_lie_row_by_row_is_told_so() -> None:
    layer = partial(nn.Conv2d, 3, 4, 2)
    given = task("turned", lambda: layer().to(memory_format=torch.channels_last), lambda m, b: m(_image(b)).mean())
    assert opaque(given).parameters[0].tensor.strides == (12, 1, 6, 3)


def _image(batch: Any) -> Any:
    return batch[0][:, :3, None, None].expand(-1, -1, 4, 4)


def test_a_single_sample_is_enough() -> None:
    given = replace(task("single", lambda: nn.Linear(6, 3)), data=rows(1), batch_size=1)
    assert opaque(given).inputs[0][1].shape == (Affine(1), 6)


@pytest.mark.parametrize(("precision", "each"), [("fp32", 8), ("fp64", 16)])
def test_weights_and_gradients_have_to_fit(monkeypatch: pytest.MonkeyPatch, precision: str, each: int) -> None:
    given, needed = task("linear", lambda: nn.Linear(6, 3)), each * 21
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=needed))
    assert opaque(given, precision).rung == "opaque"
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=needed - 1))
    with pytest.raises(CaptureError, match="use a machine with more memory"):
        opaque(given, precision)


def recorded(model: Any, batch: Any) -> Any:
    model.bias.requires_grad_(False)
    model.bias.mul_(model.weight.sum())
    return F.cross_entropy(model(batch[0]), batch[1])


def in_place(model: Any, batch: Any) -> Any:
    with torch.no_grad():
        model.weight.clamp_(-0.1, 0.1)
    return F.cross_entropy(model(batch[0]), batch[1])


def half_frozen() -> Any:
    model = nn.Linear(6, 3)
    model.bias.requires_grad_(False)
    return model


@pytest.mark.parametrize(
    ("model", "loss", "words"),
    [
        (half_frozen, recorded, "'bias', which is frozen, while gradients are recorded"),
        (lambda: nn.Linear(6, 3), in_place, "changes parameter 'weight' in place"),
        (lambda: nn.EmbeddingBag(10, 3, sparse=True), lambda m, b: m(b[1][:, None]).mean(), "a sparse gradient"),
        (nn.ReLU, lambda m, b: m(b[0]).mean(), "has no parameters"),
    ],
    ids=["frozen", "in place", "sparse", "none"],
)
def test_what_a_traced_step_refuses_is_refused(model: Any, loss: Any, words: str) -> None:
    with pytest.raises(TaskError, match=words):
        opaque(task("refused", model, loss))
