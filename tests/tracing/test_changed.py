"""Buffers that forward changes and reads otherwise: every plan trains as plain PyTorch does."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from partita.oracles.check import TOLERANCE, checked
from partita.recipes.catalogue import call
from partita.task import Task
from tests.captures import capture
from tests.small import cluster_of

Pass = Callable[["Kept", Tensor], Tensor]
PLANS = ("single(recompute=full)", "ddp(bucket_bytes=64,first_bucket_bytes=64)", "pipe_sgd(bucket_bytes=64)")


class Kept(nn.Module):
    """Two layers, and what earlier minibatches left."""

    def __init__(self, forward: Pass) -> None:
        super().__init__()
        self.way, self.inner, self.outer = forward, nn.Linear(6, 8), nn.Linear(8, 3)
        self.register_buffer("now", torch.full((8,), 0.7))
        self.register_buffer("before", torch.full((8,), 0.3))

    def forward(self, x: Tensor) -> Tensor:
        return self.way(self, x)


def through_a_view(m: Kept, x: Tensor) -> Tensor:
    y = m.inner(x)
    z = y * m.now.view(1, -1)
    m.now = 0.5 * m.now + 0.5 * y.detach().abs().mean(0)
    return m.outer(z)


def in_place_behind_a_view(m: Kept, x: Tensor) -> Tensor:
    y = m.inner(x)
    z = torch.tanh(y * torch.rsqrt(m.now.view(1, -1).expand(len(x), 8) + 1e-5))
    with torch.no_grad():
        m.now.lerp_(y.square().mean(0), 0.5)
    return m.outer(torch.tanh(z))


def the_old_one_late(m: Kept, x: Tensor) -> Tensor:
    old, y = m.now, torch.tanh(m.inner(x))
    m.now = 0.5 * m.now + y.detach().abs().mean()
    return m.outer(torch.tanh(y)) * old[2:5].exp()


def one_handed_on(m: Kept, x: Tensor) -> Tensor:
    y = m.inner(x) * m.before.exp() + m.now
    m.before, m.now = m.now, 0.5 * m.now + 0.5 * y.detach().mean(0)
    return m.outer(y)


def handed_round(m: Kept, x: Tensor) -> Tensor:
    y = m.inner(x) * m.before + m.now
    m.before, m.now = m.now.view(2, 4).view(8), m.before
    return m.outer(torch.tanh(y))


def a_sample(m: Kept, x: Tensor) -> Tensor:
    y = m.inner(x) + m.before
    m.before = x[0].detach().sum().expand(8)
    return m.outer(torch.tanh(y))


def task(forward: Pass) -> Task:
    drawn = torch.Generator().manual_seed(0)
    data = TensorDataset(torch.randn(8, 6, generator=drawn).repeat(4, 1), torch.zeros(32, dtype=torch.long))

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(model(batch[0]), batch[1])

    return Task("kept", partial(Kept, forward), loss, data, partial(torch.optim.SGD, lr=0.05), batch_size=8)


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize(
    "forward", [through_a_view, in_place_behind_a_view, the_old_one_late, one_handed_on, handed_round, a_sample]
)
def test_a_buffer_is_read_as_it_was(forward: Pass, plan: str) -> None:
    found = checked(task(forward), lambda graph: call(plan, graph, cluster_of(1)), cluster_of(1), steps=4)
    assert found["max_difference"] <= TOLERANCE


def test_only_what_is_read_late_is_copied() -> None:
    """BatchNorm's statistics, say, are not."""
    norm = Task(
        "norm", lambda: nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3)), task(a_sample).loss, task(a_sample).data,
        partial(torch.optim.SGD, lr=0.05), batch_size=8,
    )  # fmt: skip
    assert not [one.name for one in capture(norm).operators if "clone" in one.target]
    copies = [one for one in capture(task(through_a_view)).operators if "clone" in one.target]
    assert [ref.name for one in copies for ref in one.reads()] == ["now"]
