"""Weights whose gradients are round-off are not equal, and are named where a rounding moves them as well."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import nn

from partita.oracles.check import TOLERANCE, checked
from partita.oracles.undetermined import undetermined
from partita.recipes.catalogue import call
from partita.task import Task
from tests.small import cluster_of, perceptron


class Attending(nn.Module):
    """Softmax does not depend on a key's bias, which is zero at first."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.kv, self.last = nn.Linear(6, 8), nn.Linear(6, 16), nn.Linear(8, 3)
        nn.init.zeros_(self.kv.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x[:, None] * torch.arange(1, 5, device=x.device)[:, None]
        k, v = self.kv(rows).split(8, -1)
        made = (self.q(rows) @ k.transpose(1, 2)).softmax(-1) @ v
        return self.last(made.mean(1))  # type: ignore[no-any-return]


def attending(eps: float) -> Task:
    return replace(perceptron(), model=Attending, optimizer=partial(torch.optim.AdamW, lr=0.01, eps=eps))


def test_what_round_off_decides_is_named() -> None:
    machines = cluster_of(2)
    found = checked(attending(1e-12), lambda graph: call("ddp", graph, machines), machines)
    assert not found["equal"]
    assert found["tolerance"] == TOLERANCE
    assert "all that differs is in kv.bias, where gradients are round-off" in found["because"]


def normal() -> nn.Module:
    """Biases before norms of the batch, which take them out again."""
    return nn.Sequential(
        nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)
    )


def test_what_round_off_decides_is_named_where_batches_are_normalised() -> None:
    machines, task = cluster_of(4), replace(perceptron(), model=normal)
    plan = "ddp(rule=lamb,collective=doubling)"  # sums in another order than the reference's
    found = checked(task, lambda graph: call(plan, graph, machines), machines)
    assert not found["equal"]
    assert "all that differs is in 0.bias, 3.bias, where gradients are round-off" in found["because"]


class Idle(nn.Module):
    """Its first layer never says anything, so nothing moves its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(x) + (self.first(x) - 1e3).relu().sum(1, keepdim=True)  # type: ignore[no-any-return]


def test_what_no_sample_moves_is_not_moved_by_the_rounding_of_multipliers() -> None:
    machines = cluster_of(3)
    task = replace(perceptron(), model=Idle, optimizer=partial(torch.optim.Adam, lr=0.01))
    for plan in ("admm", "admm(need=1)"):
        found = checked(task, lambda graph, plan=plan: call(plan, graph, machines), machines)  # type: ignore[misc]
        assert (found["equal"], found["because"]) == (True, "")


def test_what_gradients_decide_is_equal_or_has_no_excuse() -> None:
    task, machines = attending(1e-3), cluster_of(2)
    found = checked(task, lambda graph: call("ddp", graph, machines), machines)
    assert (found["equal"], found["because"]) == (True, "")
    named = dict(task.model().named_parameters())
    none = {name: torch.zeros_like(p) for name, p in named.items()}
    say = partial(undetermined, task, tolerance=TOLERANCE, batch=12, steps=1, seed=0, dims={})
    for name in ("q.weight", "kv.bias", "last.bias"):  # the values' part of kv.bias has gradients
        wrong = none | {name: torch.ones_like(named[name])}
        assert say(gaps=wrong, nudged=wrong) == ""
    keys = none | {"kv.bias": torch.cat([torch.ones(8), torch.zeros(8)])}
    assert say(gaps=keys, nudged=keys)
    assert say(gaps=keys, nudged=none) == ""
