"""Every plan trains as its class promises, on a model with each kind of trouble."""

from __future__ import annotations

import random
from dataclasses import replace
from math import inf, nan
from typing import Any

import pytest
import torch
from torch import nn

from partita.oracles.check import TOLERANCE, checked, difference
from partita.recipes.catalogue import call
from partita.runs.assembly import train_in_process
from partita.runtime.workload import Workload
from partita.task import Task
from partita.zoo.tasks import classify
from tests.captures import capture
from tests.runtime.padded import padded
from tests.small import cluster_of, perceptron

PLANS = (
    "single", "single(microbatches=3)", "ddp", "ddp(bucket_bytes=100)", "ps_sync", "ps_sync(servers=2,own=false)",
    "pipe_sgd", "pipe_sgd(staleness=2)", "pipe_sgd(warmup=2)", "local_sgd(period=2)", "local_sgd(period=1)",
    "post_local_sgd(switch=2,period=2)", "parallel_sgd", "diloco(period=2)", "diloco(period=1,rate=1,momentum=0)",
    "diloco(period=3,fragments=3,lag=1,keep=0.5)", "diloco(period=3,fragments=2,microbatches=2)",
    "diloco(period=2,lag=2,rate=1,momentum=0.3,keep=0.4)", "diloco(period=1,lag=1)",
    "diloco(period=2,codec=q8)", "diloco(period=2,codec=fp16)", "diloco(period=2,codec=topk(ratio=0.2))",
    "diloco(period=3,fragments=3,lag=1,codec=onebit)", "diloco(period=2,codec=powersgd(rank=1))",
    "easgd(period=2)", "eamsgd(period=2)", "admm(period=2)", "d_psgd", "d_psgd(period=2,bucket_bytes=200)",
    "gossip(draws=2)", "gossip(direction=push,draws=3,bucket_bytes=200)", "gossip(direction=pair,draws=2,period=2)",
)  # fmt: skip


@pytest.mark.parametrize("plan", PLANS)
def test_a_plan_equals_its_serial_training(plan: str) -> None:
    machines = cluster_of(3)
    found = checked(perceptron(), lambda graph: call(plan, graph, machines), machines, steps=5)
    assert found["max_difference"] <= TOLERANCE


@pytest.mark.parametrize("collective", ["ring", "doubling", "hierarchical(3)"])
def test_a_collective_by_its_schedule(collective: str) -> None:
    """CO-02..07, message by message in an order drawn from a seed."""
    machines = cluster_of(3)
    found = checked(perceptron(), lambda graph: call(f"ddp(collective={collective})", graph, machines), machines)
    assert found["max_difference"] <= TOLERANCE


def test_however_many_buckets_the_weights_are_the_same() -> None:
    """CS-01, CS-02: gradients that leave while backward goes on, in buckets of any size, are those that leave together
    when it has ended (1e-12), also where only the last part of each is waited for."""
    task, machines = replace(perceptron(), optimizer=lambda p: torch.optim.SGD(p, lr=0.1)), cluster_of(3)
    graph, ends = capture(task, precision="fp64"), []
    for size in (10**6, 400, 100, 0):
        for order in ("fifo", "priority"):
            text = f"ddp(bucket_bytes={size},first_bucket_bytes={size},order={order})"
            plan = call(text, graph, machines)
            states, _ = train_in_process(Workload(task, graph, precision="fp64"), plan, machines, 5, order=size)
            ends.append(states[0].leaves)
    assert all(difference(end, ends[0]) <= 1e-12 for end in ends)


def test_weights_that_are_not_numbers_differ() -> None:
    """Any maximum with NaN in it depends on the order: one NaN, on either side or on both, is infinitely far away."""
    right = {"a": torch.ones(2), "b": torch.ones(2)}
    wrong = right | {"a": torch.tensor([1.0, nan])}
    assert difference(right, right) == 0.0
    assert [difference(*pair) for pair in ((wrong, right), (right, wrong), (wrong, wrong))] == [inf] * 3


def test_a_gap_is_relative_to_the_largest_weight_of_its_own_tensor() -> None:
    """So that what is small is not hidden by what is large, wherever it stands; a tensor of round-off alone is held to
    the largest weight of the model."""
    theirs = {"a": torch.tensor([1e-3, -2e-3]), "b": torch.tensor([50.0, 0.0]), "c": torch.tensor([1e-9, 0.0])}
    theirs = {name: weight.double() for name, weight in theirs.items()}
    for name, scale in (("a", 2e-3), ("b", 50.0), ("c", 50.0)):
        for place in range(2):
            ours = {key: weight.clone() for key, weight in theirs.items()}
            ours[name][place] += 1e-10
            assert difference(ours, theirs) == pytest.approx(1e-10 / scale, rel=1e-3)


def test_weights_without_signs_are_compared() -> None:
    right = {"a": torch.tensor([True, False]), "b": torch.tensor([3, 5], dtype=torch.uint8)}
    assert difference(right, right) == 0.0
    assert difference(right | {"a": torch.tensor([True, True])}, right) == 1.0
    assert difference(right | {"b": torch.tensor([2, 5], dtype=torch.uint8)}, right) == 1 / 5


class Switched(nn.Linear):
    """Has a truth value among its parameters, which nothing trains."""

    def __init__(self) -> None:
        super().__init__(6, 3)
        self.on = nn.Parameter(torch.tensor([True]), requires_grad=False)


def test_a_frozen_truth_value_is_no_hindrance() -> None:
    machines = cluster_of(2)
    task = replace(perceptron(), model=Switched)
    assert checked(task, lambda graph: call("ddp", graph, machines), machines)["equal"]


def fading() -> Task:
    """A loss that counts its calls, and falls with them."""
    kept = {"calls": 0}

    def loss(model: Any, batch: Any) -> Any:
        kept["calls"] += 1
        return classify(model, batch) / kept["calls"]

    return replace(perceptron(), loss=loss)


def test_what_a_loss_keeps_is_each_trainings_own_or_named() -> None:
    """One process counts as the serial training does; several have one loss here, and this is said."""
    machines, task = cluster_of(2), fading()
    assert checked(task, lambda graph: call("single", graph, machines), machines)["equal"]
    found = checked(task, lambda graph: call("ddp", graph, machines), machines)
    assert not found["equal"]
    assert "the loss changes 'kept.calls' in every step, which is no buffer of the model; keep" in found["because"]


def chancy(model: Any, batch: Any) -> Any:
    """A loss that Python's random numbers scale."""
    return classify(model, batch) * (1 + random.random())


def test_a_step_that_follows_pythons_random_numbers_is_said_to() -> None:
    machines, task = cluster_of(2), replace(perceptron(), loss=chancy)
    found = checked(task, lambda graph: call("ddp", graph, machines), machines)
    assert not found["equal"]
    assert "the step follows Python's or NumPy's random numbers" in found["because"]


class Sum(nn.Module):
    """Two parameters that get one and the same gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.full((6, 3), 0.1)), nn.Parameter(torch.randn(6, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ (self.a + self.b)


@pytest.mark.parametrize("plan", ["single", "single(precision=fp16)", "ddp(bucket_bytes=0)", "pipe_sgd"])
def test_parameters_with_one_gradient_under_a_bound(plan: str) -> None:
    task, machines = replace(perceptron(), model=Sum, clip_norm=0.1), cluster_of(3)
    assert checked(task, lambda graph: call(plan, graph, machines), machines)["equal"]


def test_the_check_can_fail() -> None:
    """A plan that forgets to average is found out."""
    machines = cluster_of(3)
    found = checked(perceptron(), lambda graph: replace(call("ddp", graph, machines), sync=()), machines)
    assert not found["equal"]


class Packing(nn.Module):
    """Drops elements of all steps of all samples, one sample's after the other's where they are there."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(6, 3)

    def forward(self, x: Any) -> Any:
        rows, columns = (x > 0).nonzero(as_tuple=True)
        kept = torch.nn.functional.dropout(x[rows, columns], 0.5, self.training)
        return self.last(torch.zeros_like(x).index_put((rows, columns), kept))


def test_draws_that_do_not_lie_along_samples_are_said_to() -> None:
    machines, task = cluster_of(2), replace(perceptron(), model=Packing)
    found = checked(task, lambda graph: call("ddp", graph, machines), machines)
    assert not found["equal"]
    assert "what it draws at random does not lie along its samples" in found["because"]
    assert checked(task, lambda graph: call("single", graph, machines), machines)["equal"]


@pytest.mark.parametrize(
    "task", [replace(perceptron(), clip_norm=0.05), padded(clip_norm=0.05)], ids=["mean", "weighted"]
)
@pytest.mark.parametrize(
    "plan",
    ["ps_async", "ps_async(servers=2,bucket_bytes=100,codec=q8)", "ssp", "downpour(fetch=2)", "softsync", "dc_asgd",
     "backup_workers", "easgd(servers=1)", "admm(need=1)"],
)  # fmt: skip
def test_servers_that_go_ahead_bound_what_each_worker_contributes(plan: str, task: Task) -> None:
    machines = cluster_of(4)
    found = checked(task, lambda graph: call(plan, graph, machines), machines, steps=4)
    assert (found["equal"], found["because"]) == (True, "")


class Sideways(nn.Module):
    """The gradient that comes to its dropout lies otherwise than what went through it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 12), nn.Linear(3, 3)

    def forward(self, x: Any) -> Any:
        rows = torch.nn.functional.dropout(self.first(x.expand(4, -1, -1)), 0.5, self.training)
        return self.last(rows.transpose(0, 1).reshape(len(x), 16, 3)).mean(1)


@pytest.mark.parametrize("plan", ["ddp", "gpipe(stages=2)"])
def test_gradients_that_lie_otherwise_than_they_were_traced(plan: str) -> None:
    machines, task = cluster_of(2), replace(perceptron(), model=Sideways)
    assert checked(task, lambda graph: call(plan, graph, machines), machines)["equal"]
