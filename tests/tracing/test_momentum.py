"""What an optimizer's momentum is to all weights, by its groups and its schedule."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from torch import Tensor, optim

from partita.graph.graph import Optimizer
from partita.tracing.momentum import with_momentum
from tests.small import perceptron, two_layers


def found(*groups: dict[str, Any], schedule: Any = None) -> Optimizer:
    """Of two weights under SGD, in as many groups."""

    def make(parameters: Iterable[Tensor]) -> optim.Optimizer:
        given = list(parameters)
        parts = [given] if len(groups) == 1 else [[one] for one in given]
        return optim.SGD([{"params": part} | group for part, group in zip(parts, groups, strict=True)], lr=0.1)

    return with_momentum(two_layers(), replace(perceptron(), optimizer=make, schedule=schedule)).optimizer


class Moved:
    """A schedule that sets the momentum of its step."""

    def __init__(self, optimizer: optim.Optimizer, values: tuple[float, ...]) -> None:
        self.optimizer, self.left = optimizer, list(values)

    def step(self) -> None:
        self.optimizer.param_groups[0]["momentum"] = self.left.pop(0)


def by(*values: float) -> Any:
    return lambda optimizer: Moved(optimizer, values)


HEAVY = {"momentum": 0.9}


def test_all_weights_have_one_momentum() -> None:
    rule = found(HEAVY | {"nesterov": True})
    assert (rule.momentum, rule.nesterov, rule.decays, rule.fixed_to) == (0.9, True, False, "")
    assert found({}) == Optimizer()


@pytest.mark.parametrize("decays", [(0.1, 0.0), (0.0, 0.1), (0.1, 0.1)])
def test_some_weights_that_decay_are_enough(decays: tuple[float, float]) -> None:
    rule = found(*(HEAVY | {"weight_decay": one} for one in decays))
    assert (rule.decays, rule.linear, rule.fixed_to) == (True, False, "")


@pytest.mark.parametrize(
    ("groups", "schedule", "why"),
    [
        ((HEAVY, {"momentum": 0.5}), None, "its groups have several kinds of it"),
        ((HEAVY, {}), None, "its groups have several kinds of it"),
        ((HEAVY | {"dampening": 0.5},), None, "its gradients are dampened"),
        (({"dampening": 0.5},), None, ""),
        ((HEAVY,), by(0.9, 0.9, 0.8, 0.8, 0.8), "its schedule moves it"),
        ((HEAVY,), by(0.8, 0.8, 0.8, 0.8, 0.9), "its schedule moves it"),
        ((HEAVY,), by(0.9, 0.8), "its schedule moves it"),
        ((HEAVY,), by(0.9, 0.9), ""),  # which ends then
        ((HEAVY,), by(0.9, 0.9, 0.9, 0.9, 0.9), ""),
    ],
)
def test_what_ties_momentum_to_the_optimizer_s_steps(groups: Any, schedule: Any, why: str) -> None:
    rule = found(*groups, schedule=schedule)
    assert (rule.fixed_to, rule.momentum) == (why, max(group.get("momentum", 0.0) for group in groups))


def test_other_rules_are_left_as_they_are() -> None:
    graph = replace(two_layers(), optimizer=Optimizer("Adam"))
    assert (
        with_momentum(graph, replace(perceptron(), optimizer=lambda ps: optim.SGD(ps, lr=0.1, momentum=0.9))) is graph
    )
