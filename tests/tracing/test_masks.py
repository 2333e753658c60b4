"""Rows that a mask of samples' values chooses, as losses choose them."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from partita.errors import CaptureError
from partita.oracles.check import checked
from partita.recipes.catalogue import call
from partita.task import Task
from partita.tracing.conditions import Conditions
from partita.tracing.trace import Trace, trace_step
from tests.captures import capture
from tests.small import cluster_of
from tests.tracing.eager import difference

Loss = Callable[[Any, Tensor, Tensor, Tensor], Tensor]  # of model, x (N, 5, 6), y (N, 5, 4) and which of (N, 5) count


class Scores(nn.Module):
    """(N, 5, 6) -> (N, 5, 4), with parameters that losses put beside chosen rows."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.norm = nn.Linear(6, 8), nn.Linear(8, 4), nn.LayerNorm(4)
        self.scale, self.table = nn.Parameter(torch.tensor(0.3)), nn.Parameter(torch.randn(3, 4))

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.last(self.first(x).tanh())
        return made


def task(loss: Loss, missing: float = 0.0) -> Task:
    """A task of which some rows are masked; targets of these are `missing`."""
    drawn = torch.Generator().manual_seed(0)
    mask = torch.rand(32, 5, generator=drawn) > 0.4
    y = torch.where(mask[..., None], torch.randn(32, 5, 4, generator=drawn), missing)
    data = TensorDataset(torch.randn(32, 5, 6, generator=drawn), y, mask)

    def called(model: nn.Module, batch: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        total = loss(model, *batch)
        return total, batch[2].sum()

    return Task("masked", Scores, called, data, partial(torch.optim.SGD, lr=0.02), batch_size=8)


def traced(loss: Loss) -> Trace:
    return trace_step(task(loss), 5, "fp32", Conditions(), real=False)


def squares(model: Any, x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    return F.mse_loss(model(x)[mask], y[mask], reduction="sum")


def labels(model: Any, x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    scores, wanted = model(x)[mask], y.argmax(-1)[mask]
    weights = torch.tensor([1.0, 2.0, 3.0, 1.0], dtype=x.dtype)
    likelihood = F.nll_loss(scores.log_softmax(-1), wanted, reduction="none")
    smooth = F.cross_entropy(scores, wanted, label_smoothing=0.1, reduction="sum", weight=weights)
    return likelihood.sum() + smooth + F.cross_entropy(scores, wanted) + (scores.argmax(1) == wanted).float().mean()


def roots(model: Any, x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    """Slopes of rows that do not count are infinite, or nothing, also where parameters stand beside them."""
    rows = model.norm(model(x)[mask])
    apart = ((rows - y[mask]) / F.softplus(model.scale)).pow(2).sum(-1)
    return (apart.sqrt().log() * model.scale).sum() + F.normalize(rows)[:, 1:].max(dim=1).values.sum()


def places(model: Any, x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    made, (row, column), both = model(x), torch.where(mask), mask.nonzero()
    flat = mask.flatten().nonzero().squeeze(1)
    apart = made[row, column, 1:] - y[both[:, 0], both[:, 1], 1:]
    return (
        apart.abs().sum()
        + made.view(-1, 4).index_select(0, flat).square().sum()
        + made.masked_select(mask[..., None]).sum()
    )


def picked(model: Any, x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    """A row of a table for each chosen one, and of these some again."""
    rows = model(x)[mask]
    near = rows - model.table[y[mask].argmax(-1) % 3]
    return (near**2).sum() + near[near[:, 0] > 0].cosh().sum()


def twice(model: Any, x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    """The same mask written again, another one, and both behind each other."""
    made, first = model(x)[..., 0], y[..., 0]
    ones = torch.cat([torch.ones_like(first[first > 0]), torch.zeros_like(first[first <= 0])])
    found = torch.cat([made[first > 0], made[first <= 0]])
    return F.binary_cross_entropy_with_logits(found, ones, reduction="sum") + made[first > 0].mean()


def assigned(model: Any, x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    """Rows that are put back, and a mask and rows that are changed in place behind what was chosen by them."""
    made, fewer, values = model(x), mask.clone(), y.clone()
    values[mask] = made[mask].tanh()
    values[mask] *= 2
    values[~mask] = model.table[0]
    given = y[fewer]
    fewer &= x[..., 0] > 0
    return values.square().sum() + given.sum() * made[fewer].mean() + given.sum(0).prod() * made[fewer].sum()


def shaped(model: Any, x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    rows, wanted = model(x)[mask], y[mask]
    apart = (rows - wanted)[:, 1:].reshape(-1).abs().sum() + rows[:, :, None].flatten(1).sum()
    apart = apart + torch.where(wanted > 0, rows, 0.0).sum()
    return apart + torch.stack([rows, wanted], 1).mean(1).sum() + rows.unsqueeze(-1).squeeze(-1).exp().sum()


LOSSES = [squares, labels, roots, places, picked, twice, assigned, shaped]


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.__name__)
def test_a_step_that_chooses_rows_is_traced_and_is_what_torch_makes_of_it(loss: Loss) -> None:
    graph = capture(task(loss), precision="fp64")
    assert (graph.blind, graph.rung, graph.symbolic) == ("", "dispatch", True)
    assert difference(task(loss), graph, 8) < 1e-13


@pytest.mark.parametrize("loss", [squares, roots], ids=lambda loss: loss.__name__)
def test_what_is_left_out_may_be_no_number(loss: Loss) -> None:
    given = task(loss, missing=float("nan"))
    assert difference(given, capture(given, precision="fp64"), 8) < 1e-13


@pytest.mark.parametrize("plan", ["zero2", "one_f_one_b(stages=2)"])
def test_plans_divide_a_step_that_chooses_rows(plan: str) -> None:
    machines = cluster_of(2)
    found = checked(task(squares), lambda graph: call(plan, graph, machines), machines)
    assert found["equal"], found


def _numbered(flat: Tensor, mask: Tensor) -> Tensor:
    """Rows that a mask chooses go where numbers say that are not their places."""
    numbers = torch.arange(len(flat)).flip(0)
    made = torch.zeros_like(flat)
    made[numbers[mask]] = flat[mask]
    return (made * torch.arange(len(flat))).sum()


@pytest.mark.parametrize(
    ("loss", "why"),
    [
        (lambda model, x, y, mask: model(x[mask]).sum(), "go into a layer that is much of the model"),
        (lambda model, x, y, mask: torch.where(y[mask] > 0)[0].sum(), "go into a question for their places"),
        (lambda model, x, y, mask: (model(x)[mask] @ y[mask].mT).sum(), "go into mT"),
        (lambda model, x, y, mask: (model(x)[mask] - y[mask.int() > 0]).sum(), "go into sub with rows of another mask"),
        (lambda model, x, y, mask: _numbered(x[..., 0].flatten(), mask.flatten()), "to rows of another mask"),
        (lambda model, x, y, mask: model(x)[mask].softmax(0)[0].sum(), "go into softmax along them"),
        (lambda model, x, y, mask: F.dropout(model(x)[mask]).sum(), "go into dropout"),
        (lambda model, x, y, mask: model(x)[mask].add_(1).sum(), "go into add_"),
        (lambda model, x, y, mask: model(x)[mask].sum() / len(y[mask]), "go into len()"),
        (lambda model, x, y, mask: sum(row.sum() for row in model(x)[mask]), "go into a loop over them"),
    ],
)
def test_what_needs_the_number_of_rows_is_told(loss: Loss, why: str) -> None:
    with pytest.raises(CaptureError, match=re.escape(why)):
        traced(loss)


def test_a_row_that_was_seen_elsewhere_is_not_changed_in_place() -> None:
    def loss(model: Any, x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        rows = model(x)[mask]
        part = rows[:, 0]
        rows += 1
        return (part * rows[:, 1]).sum()

    with pytest.raises(CaptureError, match="an operation in place"):
        traced(loss)


def headed(model: Any, x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    """A head of one of the model's features, the first of 96 of which others are computed too."""
    many = (x @ torch.ones(6, 96, dtype=x.dtype) * model.scale).square()
    return many.sum() + F.linear(model(x)[mask], model.table).log_softmax(-1).square().sum()


def test_a_small_layer_of_chosen_rows_is_one_of_all_rows() -> None:
    given = task(headed, missing=float("nan"))
    graph = capture(given, precision="fp64")
    assert graph.blind == ""
    assert difference(given, graph, 8) < 1e-13


def test_a_large_layer_of_chosen_rows_leaves_the_model_one_operator() -> None:
    graph = capture(task(lambda model, x, y, mask: model(x[mask]).sum()))
    assert graph.rung == "opaque"
    assert "go into a layer that is much of the model; apply it to all rows" in graph.blind
