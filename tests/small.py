"""Small things that many tests build on: a graph by hand, a cluster of equal devices, a task of a few numbers."""

from __future__ import annotations

import torch
from torch import nn

from partita.cluster.cluster import Cluster, Device, Group, Link
from partita.graph.graph import Constant, Graph, Parameter
from partita.graph.operator import Operator, Phase, Ref
from partita.graph.tensor import Affine, Tensor
from partita.task import Task


def cluster_of(size: int, bandwidth: float = 1.25e8) -> Cluster:
    """Equal devices at one switch."""
    return Cluster(f"equal-{size}", Group("root", (Device(cores=0.5),) * size, (Link(bandwidth),) * size))


def two_layers() -> Graph:
    """loss = sum(x @ a @ b) by hand: two parameters, two forward products, their gradients."""
    each = Affine(1)
    x, h, y = Tensor((each, 4), "float32"), Tensor((each, 6), "float32"), Tensor((each, 2), "float32")
    a, b, one = Tensor((4, 6), "float32"), Tensor((6, 2), "float32"), Tensor((), "float32")
    forward = (
        Operator("h", "aten.mm.default", (Ref("input.0"), Ref("a")), outputs=(h,)),
        Operator("y", "aten.mm.default", (Ref("h"), Ref("b")), outputs=(y,)),
        Operator("loss", "aten.sum.default", (Ref("y"),), outputs=(one,)),
    )
    backward = (
        Operator("dy", "aten.expand.default", (Ref("tangent"), (each, 2)), outputs=(y,)),
        Operator("ht", "aten.t.default", (Ref("h"),), outputs=(Tensor((6, each), "float32", (1, 6)),)),
        Operator("db", "aten.mm.default", (Ref("ht"), Ref("dy")), outputs=(b,)),
        Operator("bt", "aten.t.default", (Ref("b"),), outputs=(Tensor((2, 6), "float32", (1, 2)),)),
        Operator("dh", "aten.mm.default", (Ref("dy"), Ref("bt")), outputs=(h,)),
        Operator("xt", "aten.t.default", (Ref("input.0"),), outputs=(Tensor((4, each), "float32", (1, 4)),)),
        Operator("da", "aten.mm.default", (Ref("xt"), Ref("dh")), outputs=(a,)),
    )
    from dataclasses import replace

    return Graph(
        "two-layers", 8, forward + tuple(replace(o, phase=Phase.BACKWARD) for o in backward),
        (Parameter("a", a), Parameter("b", b)), (), (Constant("tangent", one, b"\x00\x00\x80\x3f"),),
        (("input.0", x),), Ref("loss"), None, (("a", Ref("da")), ("b", Ref("db"))), global_batch=8, samples=64,
    )  # fmt: skip


class Numbers(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Seeded samples (6 numbers, their class of 3)."""

    def __init__(self, size: int = 48) -> None:
        draw = torch.Generator().manual_seed(7)
        self.x = torch.randn(size, 6, generator=draw)
        self.y = torch.randint(0, 3, (size,), generator=draw)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.x[index], self.y[index]


def perceptron() -> Task:
    """A two-layer perceptron on seeded numbers; momentum, so that the optimizer has state."""
    return Task(
        name="perceptron",
        model=lambda: nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3)),
        loss=lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1]),
        data=Numbers(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
        batch_size=12,
    )
