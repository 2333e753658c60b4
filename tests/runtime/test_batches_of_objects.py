"""Batches that are objects of a class of the user's own, with tensors as attributes, such as those of graphs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from partita.api import plan_of
from partita.oracles.check import checked
from partita.tracing.leaves import changed
from tests.small import cluster_of, perceptron


class Store:
    def __init__(self, **held: Any) -> None:
        self.held = held


class Graphs:
    """Features and labels, in a store of its own, and a name."""

    def __init__(self, samples: list[Any]) -> None:
        self.name = "some"
        self.store = Store(x=torch.stack([x for x, _ in samples]))
        self.y = torch.stack([y for _, y in samples])


@pytest.mark.parametrize("text", ["single", "ddp"])
def test_objects_are_verified(text: str) -> None:
    def loss(model: Any, batch: Graphs) -> torch.Tensor:
        return F.cross_entropy(model(batch.store.held["x"]), batch.y)

    task, machines = replace(perceptron(), loss=loss, collate=Graphs), cluster_of(1 if text == "single" else 2)
    found = checked(task, lambda graph: plan_of(text, graph, machines), machines)
    assert (found["equal"], found["because"]) == (True, "")


def test_what_a_collation_made_is_not_changed() -> None:
    batch = Graphs([(torch.ones(2), torch.tensor(1))])
    wide = changed(batch, lambda tensor: tensor.double() if tensor.is_floating_point() else tensor)
    assert [one.store.held["x"].dtype for one in (batch, wide)] == [torch.float32, torch.float64]
    assert (wide.y is batch.y, wide.name) == (True, "some")
    assert changed(batch, lambda tensor: tensor) is batch


def test_an_object_that_holds_itself_is_no_hindrance() -> None:
    batch = Graphs([(torch.ones(2), torch.tensor(1))])
    batch.store.whole = batch  # type: ignore[attr-defined]
    assert changed(batch, torch.Tensor.double).store.held["x"].dtype is torch.float64


def test_a_module_that_comes_with_a_batch_stays_what_it_is() -> None:
    batch = Graphs([(torch.ones(2), torch.tensor(1))])
    batch.store.held["net"] = net = torch.nn.Linear(2, 2)
    made = changed(batch, torch.Tensor.double).store.held
    assert (made["x"].dtype, made["net"] is net) == (torch.float64, True)
