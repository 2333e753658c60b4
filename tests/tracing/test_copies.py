"""A copy of a model computes with layers of its own, also in functions that the model made for itself."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from partita.oracles.check import TOLERANCE, checked
from partita.recipes.catalogue import call
from partita.tracing.capture import capture
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


class Taught(nn.Module):
    """A student whose teacher begins as a copy of it, and counts batches."""

    def __init__(self) -> None:
        super().__init__()
        self.student = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 6))
        self.student[1].running_mean.mark = "mean"  # type: ignore[attr-defined]
        self.teacher = deepcopy(self.student)
        assert self.teacher[1].running_mean.mark == "mean"  # type: ignore[attr-defined]
        for module in self.teacher.modules():
            for name in list(module._parameters):
                module.register_buffer(name, module._parameters.pop(name).detach())  # type: ignore[union-attr]

    def forward(self, x: Any) -> Any:
        with torch.no_grad():
            taught = self.teacher(x)
        return self.student(x) - taught


def test_a_model_that_copies_a_part_of_itself_is_traced_without_its_mode_being_copied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Weak references to storages that were copied with the mode were released twice, which aborted the process."""
    copies = list[object]()
    monkeypatch.setattr(FakeTensorMode, "__deepcopy__", lambda mode, memo: copies.append(mode), raising=False)
    task = replace(perceptron(), model=Taught)
    assert capture(task).rung == "dispatch"
    machines = cluster_of(2)
    assert checked(task, lambda graph: call("ddp", graph, machines), machines)["max_difference"] <= TOLERANCE
    assert copies == []
