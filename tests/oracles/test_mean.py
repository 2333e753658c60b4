"""Whether a loss is the mean over its samples is asked of the loss, and said where a plan divides minibatches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from partita.oracles.check import checked
from partita.oracles.mean import divides, unlike_its_parts
from partita.recipes.catalogue import call
from tests.captures import capture
from tests.programs import program_by
from tests.runtime.branching import ragged
from tests.small import Numbers, cluster_of, perceptron


def contrastive(model: Any, batch: Any) -> Any:
    """The other samples are what a sample is told from (CLIP's)."""
    found = F.normalize(model(batch[0]), dim=-1)
    return F.cross_entropy(found @ found.t() / 0.1, torch.arange(len(found)))


def summed(model: Any, batch: Any) -> Any:
    return F.cross_entropy(model(batch[0]), batch[1], reduction="sum")


def penalised(model: Any, batch: Any) -> Any:
    """The square of a mean gradient is no mean; the loss takes gradients itself."""
    loss = F.cross_entropy(model(batch[0]), batch[1])
    return loss + sum(g.pow(2).sum() for g in torch.autograd.grad(loss, [*model.parameters()], create_graph=True))


def over_some(model: Any, batch: Any) -> Any:
    """A mean over what is not ignored, of which samples have unequally much."""
    return F.cross_entropy(model(batch[0]), batch[1], ignore_index=0)


def with_its_weight(model: Any, batch: Any) -> Any:
    return F.cross_entropy(model(batch[0]), batch[1], ignore_index=0, reduction="sum"), (batch[1] != 0).sum()


def mean_with_its_weight(model: Any, batch: Any) -> Any:
    return F.cross_entropy(model(batch[0]), batch[1], ignore_index=0), (batch[1] != 0).sum()


def beside_others(model: Any, batch: Any) -> Any:
    """A sum, in which a sample's loss depends on what is beside it, as where padding is not masked."""
    found = model(batch[0])
    most = found.max()
    return F.cross_entropy(found + most, batch[1] % 2, reduction="sum"), (len(found) * most.exp()).detach()


def noisy(model: Any, batch: Any) -> Any:
    """Its draws are keyed by sample."""
    return F.cross_entropy(model(batch[0] + torch.randn_like(batch[0])), batch[1])


def balanced(model: Any, batch: Any) -> Any:
    """A mean, and a little of what is none: how evenly the batch as a whole is routed (Mixtral's)."""
    found = model(batch[0])
    return F.cross_entropy(found, batch[1]) + 1e-5 * found.softmax(-1).mean(0).pow(2).sum()


PAIR = "return (sum, weight)"


@pytest.mark.parametrize(
    ("loss", "of", "mend"),
    [
        *(
            (loss, "samples", f"{PAIR} for a sum or a mean over tokens")
            for loss in (contrastive, summed, over_some, penalised, balanced)
        ),
        *(
            (loss, "weights", "return a sum, not a mean, with its weight")
            for loss in (mean_with_its_weight, beside_others)
        ),
    ],
)
def test_a_loss_that_is_no_mean_is_told_of(loss: Any, of: str, mend: str) -> None:
    """Who returns (sum, weight) is not told to do so."""
    task, machines = replace(perceptron(), loss=loss), cluster_of(2)
    found = checked(task, lambda graph: call("ddp", graph, machines), machines)
    assert not found["equal"]
    assert f"is not the mean over its {of}" in found["because"]
    assert f"{mend}, mask what pads" in found["because"]
    assert (PAIR in found["because"]) == (PAIR in mend)
    alone = checked(task, lambda graph: call("single", graph, machines), machines)
    assert (alone["equal"], alone["because"]) == (True, "")


@pytest.mark.parametrize("loss", [contrastive, with_its_weight])
def test_statistics_of_a_batch_do_not_hide_it(loss: Any) -> None:
    """A model with BatchNorm is compared on the same sub-batches, where its loss is the same whatever it compares."""
    machines = cluster_of(2)
    normed = replace(perceptron(), loss=loss, model=lambda: nn.Sequential(perceptron().model(), nn.BatchNorm1d(3)))
    found = {
        name: checked(normed, lambda graph, name=name: call(name, graph, machines), machines)
        for name in ("ddp", "single", "local_sgd")
    }
    told = {name: "is not the mean over its samples" in verdict["because"] for name, verdict in found.items()}
    assert told == {"ddp": loss is contrastive, "single": False, "local_sgd": False}
    assert [verdict["equal"] for verdict in found.values()] == [not each for each in told.values()]


class Sorted(Numbers):
    """Classes in order, so that the first samples all weigh alike."""

    def __init__(self) -> None:
        super().__init__()
        self.y = self.y.sort(descending=True).values


def test_samples_that_come_in_order_are_looked_at_as_they_are_trained() -> None:
    task, machines = replace(perceptron(), loss=over_some, data=Sorted()), cluster_of(2)
    assert unlike_its_parts(task, task.batch_size) == ""
    found = checked(task, lambda graph: call("ddp", graph, machines), machines)
    assert not found["equal"]
    assert "on 6 of them" in found["because"]
    assert "is not the mean over its samples" in found["because"]


@pytest.mark.parametrize("loss", [None, with_its_weight, noisy])
def test_a_loss_that_may_be_divided_is_not(loss: Any) -> None:
    task = perceptron() if loss is None else replace(perceptron(), loss=loss)
    assert unlike_its_parts(task, task.batch_size) == ""
    assert unlike_its_parts(task, 1) == ""


def test_neither_dropout_nor_batch_statistics_count() -> None:
    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))

    assert unlike_its_parts(replace(perceptron(), model=model), 12) == ""
    assert unlike_its_parts(ragged(), 12) == ""


def test_statistics_over_all_ranks_are_told_of() -> None:
    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), nn.SyncBatchNorm(8), nn.Linear(8, 3))

    task, machines = replace(perceptron(), model=model), cluster_of(2)
    found = checked(task, lambda graph: call("ddp", graph, machines), machines)
    assert not found["equal"]
    assert "layer '1' is a SyncBatchNorm, and each rank normalises by its own samples" in found["because"]
    assert checked(task, lambda graph: call("single", graph, machines), machines)["equal"]


class Signs(nn.Module):
    """Rows for the signs of numbers, with gradients by how often they are looked up."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.last = nn.Embedding(2, 4, scale_grad_by_freq=True), nn.Linear(24, 3)

    def forward(self, x: torch.Tensor) -> Any:
        return self.last(self.rows((x > 0).long()).flatten(1))


def test_gradients_by_counts_in_a_batch_are_told_of() -> None:
    task, machines = replace(perceptron(), model=Signs), cluster_of(2)
    found = checked(task, lambda graph: call("ddp", graph, machines), machines)
    assert not found["equal"]
    assert "layer 'rows' divides a row's gradient by how often the row is looked up" in found["because"]
    assert checked(task, lambda graph: call("single", graph, machines), machines)["equal"]


@pytest.mark.parametrize(
    ("plan", "parts"), [("single", False), ("single(microbatches=2)", True), ("ddp", True), ("gpipe(stages=2)", True)]
)
def test_which_plans_divide_minibatches(plan: str, parts: bool) -> None:
    graph, machines = capture(perceptron()), cluster_of(2)
    assert divides(program_by(plan, graph, machines)) is parts


class Drawn(Numbers):
    """Samples with noise of their own, drawn as they are read: augmentation."""

    def __getitem__(self, place: int) -> Any:
        x, y = super().__getitem__(place)
        return x + torch.randn(x.shape), y


def test_samples_that_are_drawn_as_they_are_read_do_not_hide_a_mean() -> None:
    assert not unlike_its_parts(replace(perceptron(), name="drawn", data=Drawn()), 6)
