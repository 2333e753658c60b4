"""An activation that a model composes is one operator in each pass, however it is written down; any other is left."""

from __future__ import annotations

from collections.abc import Callable
from math import pi, sqrt
from typing import Any

import pytest
import torch
from torch import nn

from partita.graph.graph import Graph
from partita.tracing.capture import capture
from tests.tracing.eager import difference
from tests.tracing.models import rows, task

Formula = Callable[[torch.Tensor], Any]
ROOT = sqrt(2 / pi)


class Composed(nn.Module):
    """Two layers with a formula between them."""

    def __init__(self, formula: Formula, trained: bool = True) -> None:
        super().__init__()
        self.first, self.last, self.formula = nn.Linear(6, 8), nn.Linear(8, 3), formula
        self.first.requires_grad_(trained)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.formula(self.first(x)))  # type: ignore[no-any-return]


def loss(model: Any, batch: Any) -> Any:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def kinds_of(formula: Formula, trained: bool = True, within: float = 1e-12) -> list[str]:
    """What a captured step calls that is no layer, after comparing it with autograd's."""
    given = task("composed", lambda: Composed(formula, trained), loss, rows())
    graph: Graph = capture(given, precision="fp64")
    assert graph.rung == "dispatch"
    assert difference(given, graph, 3) < within
    layers = ("aten.addmm.", "aten.mm.", "aten.t.", "aten.sum.", "aten.view.", "aten.nll_loss", "aten._log_softmax")
    return [o.target.split(".")[1] for o in graph.operators if not o.target.startswith(layers)]


KNOWN: dict[str, tuple[str, Formula]] = {
    "a power": ("gelu", lambda x: 0.5 * x * (1.0 + torch.tanh(ROOT * (x + 0.044715 * torch.pow(x, 3.0))))),
    "products": ("gelu", lambda x: x * (torch.tanh(ROOT * x * (1 + 0.044715 * x * x)) + 1) * 0.5),
    "ten digits": ("gelu", lambda x: 0.5 * x * (1 + torch.tanh(x * 0.7978845608 * (1 + 0.044715 * x * x)))),
    "erf": ("gelu", lambda x: x * 0.5 * (1.0 + torch.erf(x / sqrt(2.0)))),
    "sigmoid": ("silu", lambda x: x * torch.sigmoid(x)),
}  # fmt: skip


@pytest.mark.parametrize("name", KNOWN)
def test_a_known_one_is_one_operator_in_each_pass(name: str) -> None:
    kernel, formula = KNOWN[name]
    assert kinds_of(formula, within=1e-11) == [kernel, f"{kernel}_backward"]


def test_of_what_is_not_trained_there_is_no_backward() -> None:
    assert kinds_of(KNOWN["a power"][1], trained=False) == ["gelu"]


def test_it_may_stand_among_others() -> None:
    assert kinds_of(lambda x: KNOWN["erf"][1](x).relu()) == ["gelu", "relu", "threshold_backward", "gelu_backward"]
    assert kinds_of(lambda x: KNOWN["sigmoid"][1](x * 2)) == ["mul", "silu", "silu_backward", "mul"]


@pytest.mark.parametrize("most", [10.0, 1e9])
def test_what_clamps_it_far_away_stays(most: float) -> None:
    """Of the numbers that are looked at some are larger; one bound alone would be no call of numbers, and where there
    is a backward that tells as well."""
    formula = lambda x: KNOWN["sigmoid"][1](x).clamp(-1.0, most)  # noqa: E731
    assert {"silu", "clamp", "silu_backward"} <= {*kinds_of(formula)}
    assert kinds_of(formula, trained=False) == ["silu", "clamp"]


OTHERS: dict[str, Formula] = {
    "another function": lambda x: x * torch.sigmoid(1.702 * x),
    "another constant": lambda x: 0.5 * x * (1.0 + torch.tanh(ROOT * (x + 0.0447 * torch.pow(x, 3.0)))),
    "a core alone": torch.tanh,
    "of two values": lambda x: x[:, :4].repeat(1, 2) * torch.sigmoid(x),
    "looked into": lambda x: x * (s := torch.sigmoid(x)) + s.exp(),
}


def test_what_is_looked_into_is_not_computed_twice() -> None:
    """Where there is no backward that would tell."""
    assert kinds_of(OTHERS["looked into"], trained=False) == ["sigmoid", "mul", "exp", "add"]


def test_its_backward_is_that_of_its_forward() -> None:
    """By which stages are cut: none of the operators that it stands for is left to say so."""
    given = task("composed", lambda: Composed(KNOWN["erf"][1]), loss, rows())
    forward, backward = (o for o in capture(given).operators if o.target.startswith(("aten.gelu.", "aten.gelu_")))
    assert backward.twin == forward.name


@pytest.mark.parametrize("name", OTHERS)
def test_another_stays_as_it_is_written(name: str) -> None:
    assert not {"gelu", "silu"} & {*kinds_of(OTHERS[name])}


@pytest.mark.parametrize(
    "formula", [lambda x: x + x * torch.sigmoid(x), lambda x: x * torch.sigmoid(x) * x.cos(), lambda x: x.exp() + x * x]
)
def test_what_is_read_elsewhere_too_keeps_its_whole_gradient(formula: Formula) -> None:
    assert kinds_of(formula)
