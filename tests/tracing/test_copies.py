"""A copy of a model computes with layers of its own, also in functions that the model made for itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from partita.oracles.check import checked
from partita.recipes.catalogue import call
from partita.tracing.copies import copied
from tests.small import cluster_of, perceptron


def closed_over(net: Any, layers: nn.Sequential) -> Callable[[Any], Any]:
    """As minGPT's block has it."""
    return lambda x: layers(x)


def through_another(net: Any, layers: nn.Sequential) -> Callable[[Any], Any]:
    def inner(x: Any) -> Any:
        return layers(x)

    return lambda x: inner(x)


def by_default(net: Any, layers: nn.Sequential) -> Callable[[Any], Any]:
    return lambda x, own=[*layers]: own[2](own[1](own[0](x)))


def by_method(net: Any, layers: nn.Sequential) -> Callable[[Any], Any]:
    call = layers.forward
    return lambda x: call(x)


def beside_what_is_gone(net: Any, layers: nn.Sequential) -> Callable[[Any], Any]:
    gone = layers

    def run(x: Any) -> Any:
        return layers(x) if x is not None else gone  # noqa: F821

    del gone
    return run


class Net(nn.Module):
    def __init__(self, made: Callable[[Any, nn.Sequential], Callable[[Any], Any]] = closed_over) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
        self.run = made(self, self.layers)

    def forward(self, x: torch.Tensor) -> Any:
        return self.run(x)


@pytest.mark.parametrize("made", [closed_over, through_another, by_default, by_method, beside_what_is_gone])
def test_a_copy_computes_with_its_own_layers(made: Any) -> None:
    first = Net(made)
    copy, x = copied(first), torch.ones(1, 6)
    before = first(x)
    assert torch.equal(copy(x), before)
    with torch.no_grad():
        for weight in copy.parameters():
            weight.zero_()
    assert torch.equal(first(x), before)
    assert not copy(x).any()


def test_replicas_of_such_a_model_are_apart() -> None:
    task, machines = replace(perceptron(), model=Net), cluster_of(2)
    found = checked(task, lambda graph: call("local_sgd", graph, machines), machines)
    assert found["equal"]


def test_a_function_s_keywords_are_the_copy_s() -> None:
    """Given by default, as layers are that a function is written with."""

    class Keyed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2)

            def call(x: torch.Tensor, *, layer: nn.Module = self.layer) -> torch.Tensor:
                made: torch.Tensor = layer(x)
                return made

            self.call = call

    made = copied(Keyed())
    with torch.no_grad():
        made.layer.weight.zero_()
        made.layer.bias.fill_(3.0)
    assert made.call(torch.ones(2)).tolist() == [3.0, 3.0]
