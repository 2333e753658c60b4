"""What becomes of a trace's calls: views that are what they look at, keys of draws, results that nobody asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from partita.graph.graph import TANGENT, Graph
from partita.graph.operator import Phase
from partita.graph.repeats import DRAW
from partita.task import Task
from partita.tracing.capture import capture
from partita.tracing.convert import dense
from tests.small import perceptron
from tests.tracing.eager import difference

Loss = Callable[[Any, Any], Tensor]


def of(loss: Loss, model: Callable[[], nn.Module] = lambda: nn.Linear(6, 4)) -> Task:
    return replace(perceptron(), name="by hand", model=model, loss=loss)


def kinds(graph: Graph) -> list[str]:
    return [operator.target.split(".")[1] for operator in graph.operators]


def bits(model: Any, batch: Any) -> Tensor:
    """A value that is looked at as whole numbers: its exponent's last bits."""
    odd: Tensor = model(batch[0]).square().mean() * (batch[0].view(torch.int64) >> 52 & 3).double().mean()
    return odd


def conjugated(model: Any, batch: Any) -> Tensor:
    z = torch.view_as_complex(model(batch[0]).reshape(-1, 2, 2))
    found: Tensor = (z * z.conj() + 0.5 * z * z).real.mean()
    return found


def halves(model: Any, batch: Any) -> Tensor:
    """Two views alike but for where they begin."""
    left, right = model(batch[0]).split(2, 1)
    found: Tensor = (left * right.tanh()).mean() + left.view_as(right).exp().mean()
    return found


def stored(model: Any, batch: Any) -> Tensor:
    """A tensor that the loss keeps, by columns."""
    table = torch.arange(12.0).reshape(3, 4).t()
    found: Tensor = (model(batch[0]) @ table.to(batch[0].dtype)).tanh().mean()
    return found


@pytest.mark.parametrize("loss", [bits, conjugated, halves, stored])
def test_a_view_is_what_it_looks_at_only_where_it_looks_alike(loss: Loss) -> None:
    graph = capture(of(loss), precision="fp64")
    assert graph.rung == "dispatch"
    assert difference(of(loss), graph, 3) < 1e-12


def test_a_view_that_is_taken_back_is_no_operator() -> None:
    graph = capture(of(lambda m, b: m(b[0]).reshape(-1, 2, 2).flatten(1).square().mean()))
    plain = capture(of(lambda m, b: m(b[0]).square().mean()))
    assert kinds(graph) == kinds(plain)


def test_draws_have_keys_of_their_own() -> None:
    def model() -> nn.Module:
        return nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 4), nn.Dropout(0.2), nn.Dropout(0.1))

    task = of(lambda m, b: (m(b[0]) * torch.rand_like(b[0][:, :4])).square().mean(), model)
    graph = capture(task, precision="fp64")
    drawn = [o for o in graph.operators if o.target in DRAW]
    assert [o.arguments[DRAW[o.target]] for o in drawn] == [0, 1, 2, 3]
    assert difference(task, graph, 3) < 1e-12


class Noisy(torch.autograd.Function):
    """The same value, and a gradient with noise."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> Tensor:  # type: ignore[override]
        return d * torch.rand_like(d)


def test_what_draws_in_backward_is_not_traced() -> None:
    graph = capture(of(lambda m, b: Noisy.apply(m(b[0])).square().mean()))  # type: ignore[no-untyped-call]
    assert graph.rung == "opaque"
    assert "draws in the backward pass; switch activation checkpointing off" in graph.blind


def test_what_a_kernel_was_not_asked_for_is_no_result() -> None:
    """Of the first layer there is no gradient of samples."""
    model = lambda: nn.Sequential(nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 2, 3), nn.Conv1d(2, 3, 3))  # noqa: E731
    graph = capture(of(lambda m, b: m(b[0]).square().mean(), model))
    found = [o.outputs for o in graph.operators if o.target == "aten.convolution_backward.default"]
    assert [[made is not None for made in outputs] for outputs in found] == [[True, True, True], [False, True, True]]


def test_a_graph_says_what_its_task_says() -> None:
    graph = capture(replace(perceptron(), clip_norm=0.5))
    assert (graph.clip_norm, graph.samples, graph.global_batch) == (0.5, 48, perceptron().batch_size)
    assert capture(perceptron()).clip_norm == 0.0


@pytest.mark.parametrize("shape", [(), (3,), (2, 3, 4), (2, 0, 3), (0,), (2, 1, 3)])
def test_strides_of_a_contiguous_tensor_are_torch_s(shape: tuple[int, ...]) -> None:
    assert dense(shape) == torch.empty(shape).stride()


class Named(nn.Module):
    """A layer beside buffers that are called as operators are."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 4)
        for name in ("addmm_0", "pow_1", "mean_0"):
            self.register_buffer(name, torch.full((4,), 2.0))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layer(x) * self.addmm_0 + self.pow_1 * self.mean_0
        return found


def test_no_operator_has_the_name_of_a_leaf() -> None:
    task = of(lambda m, b: m(b[0]).square().mean(), Named)
    graph = capture(task, precision="fp64")
    assert not graph.index.keys() & graph.leaves.keys()
    assert difference(task, graph, 3) < 1e-12


class Ahead(torch.autograd.Function):
    """The same value; for its gradient an exponential is made in the forward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x.exp())
        return x.clone()

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> Tensor:  # type: ignore[override]
        (kept,) = ctx.saved_tensors
        return d * kept


def test_what_gradients_alone_need_is_backward_s_and_what_nobody_needs_is_left_out() -> None:
    def loss(model: Any, batch: Any) -> Tensor:
        y = model(batch[0])
        (torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=y.dtype) * y).cos()
        found: Tensor = Ahead.apply(y).square().mean()  # type: ignore[no-untyped-call]
        return found

    graph = capture(of(loss), precision="fp64")
    assert {o.phase for o in graph.operators if o.target == "aten.exp.default"} == {Phase.BACKWARD}
    assert "cos" not in kinds(graph)
    assert [constant.name for constant in graph.constants] == [TANGENT]
    assert difference(of(loss), graph, 3) < 1e-12
