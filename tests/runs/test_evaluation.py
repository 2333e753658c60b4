"""The held-out loss at the end of a run: of losses that take gradients themselves, and where it cannot be had."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from partita.runs.session import Session, evaluate
from tests.captures import capture
from tests.small import cluster_of, perceptron


def penalised(model: Any, batch: Any) -> torch.Tensor:
    """The loss with the squared norm of its own gradient (as in WGAN-GP, SAM, force fields)."""
    loss = F.cross_entropy(model(batch[0]), batch[1])
    gradients = torch.autograd.grad(loss, [*model.parameters()], create_graph=True)
    return loss + sum(gradient.pow(2).sum() for gradient in gradients)


def summed(model: Any, batch: Any) -> Any:
    return penalised(model, batch) * len(batch[0]), len(batch[0])


def in_training_only(model: Any, batch: Any) -> torch.Tensor:
    assert model.training, "asked for in evaluation mode"
    return F.cross_entropy(model(batch[0]), batch[1])


@pytest.mark.parametrize("loss", [penalised, summed])
def test_a_loss_that_takes_gradients_has_a_held_out_loss(loss: Any) -> None:
    task = replace(perceptron(), loss=loss)
    torch.manual_seed(0)
    model, size = task.model(), task.batch_size
    found = evaluate(task, model, task.data, size, "cpu")
    mine = penalised(model, torch.utils.data.default_collate([task.data[i] for i in range(size)]))
    assert found == pytest.approx(float(mine.detach()))


def test_a_held_out_loss_that_fails_is_a_note() -> None:
    task = replace(perceptron(), loss=in_training_only)
    session, told = Session(task, capture(task), cluster_of(1), 0, 0, 1, 1.0), list[Any]()
    assert session.evaluate(task.model(), told.append) is None
    assert ["asked for in evaluation mode" in event["note"] for event in told] == [True]
