"""Buffers that forward changes and reads otherwise: every plan trains as plain PyTorch does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from partita.graph.graph import Buffer, Graph
from partita.graph.operator import Operator, Ref
from partita.graph.tensor import Tensor as Spec
from partita.oracles.check import TOLERANCE, checked
from partita.recipes.catalogue import call
from partita.task import Task
from partita.tracing.changed import as_read
from tests.captures import capture
from tests.small import cluster_of, two_layers

Pass = Callable[["Kept", Tensor], Tensor]
ROW = Spec((4, 4), "float32")
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


def op(name: str, target: str, *reads: str, made: Spec = ROW) -> Operator:
    return Operator(name, f"aten.{target}.default", tuple(Ref(r) for r in reads), (), (made,))


def by_hand(*operators: Operator, **changes: str) -> Graph:
    """A forward pass with the buffers `mean` and `before`, square, of which these change."""
    return replace(
        two_layers(), operators=(*operators, op("loss", "sum", operators[-1].name)), gradients=(), loss=Ref("loss"),
        buffers=(Buffer("mean", ROW), Buffer("before", ROW)),
        mutations=tuple((name, Ref(new)) for name, new in changes.items()),
    )  # fmt: skip


def order(graph: Graph) -> list[tuple[str, ...]]:
    return [(o.name, *(ref.name for ref in o.reads())) for o in graph.operators[:-1]]


def test_who_reads_late_reads_a_copy_that_is_made_ahead_of_all_views() -> None:
    """Right behind the new value as well; who reads early, and a batch norm, read the buffer."""
    view, early = op("seen", "t", "mean"), op("early", "neg", "mean")
    norm = replace(op("norm", "relu", "early", "mean"), target="aten._native_batch_norm_legit_functional.default")
    graph = as_read(by_hand(early, view, op("new", "exp", "early"), op("late", "exp", "seen"), norm, mean="new"))
    assert order(graph) == [
        ("clone_0", "mean"), ("early", "mean"), ("seen", "clone_0"), ("new", "early"), ("late", "seen"),
        ("norm", "early", "mean"),
    ]  # fmt: skip
    soon = by_hand(early, op("new", "exp", "early"), norm, mean="new")
    assert as_read(soon) == soon


def test_a_new_value_has_memory_of_its_own() -> None:
    """That of a buffer which stays, of one that changes too, and of a view, laid out as the buffer is."""
    stays = as_read(by_hand(op("a", "exp", "input.0"), before="mean"))
    assert order(stays) == [("clone_0", "mean"), ("a", "input.0")]
    assert stays.mutations == (("before", Ref("clone_0")),)
    turned = op("seen", "t", "mean", made=replace(ROW, strides=(1, 4)))
    both = as_read(by_hand(turned, op("new", "exp", "seen"), before="seen", mean="new"))
    assert both.mutations == (("before", Ref("clone_0")), ("mean", Ref("new")))
    assert order(both) == [("seen", "mean"), ("clone_0", "seen"), ("new", "seen")]
    assert both.tensor(Ref("clone_0")) == ROW
    own = by_hand(op("a", "exp", "mean"), op("seen", "t", "a"), mean="seen")
    assert as_read(own) == own
