"""Small things that many tests build on: a graph by hand, a cluster of equal devices, a task of a few numbers."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import torch
from torch import nn

from partita.cluster.cluster import Cluster, Device, Group, Link
from partita.graph.graph import Constant, Graph, Parameter
from partita.graph.operator import Operator, Phase, Ref, reading
from partita.graph.tensor import Affine, Tensor
from partita.task import Task


def cluster_of(size: int, bandwidth: float = 1.25e8) -> Cluster:
    """Equal devices at one switch."""
    return Cluster(f"equal-{size}", Group("root", (Device(cores=0.5),) * size, (Link(bandwidth),) * size))


def two_layers(width: int = 6) -> Graph:
    """loss = sum(x @ a @ b) by hand: two parameters, two forward products, their gradients."""
    each = Affine(1)
    x, h, y = Tensor((each, 4), "float32"), Tensor((each, width), "float32"), Tensor((each, 2), "float32")
    a, b, one = Tensor((4, width), "float32"), Tensor((width, 2), "float32"), Tensor((), "float32")
    forward = (
        Operator("h", "aten.mm.default", (Ref("input.0"), Ref("a")), outputs=(h,)),
        Operator("y", "aten.mm.default", (Ref("h"), Ref("b")), outputs=(y,)),
        Operator("loss", "aten.sum.default", (Ref("y"),), outputs=(one,)),
    )
    backward = (
        Operator("dy", "aten.expand.default", (Ref("tangent"), (each, 2)), outputs=(y,)),
        Operator("ht", "aten.t.default", (Ref("h"),), outputs=(Tensor((width, each), "float32", (1, width)),)),
        Operator("db", "aten.mm.default", (Ref("ht"), Ref("dy")), outputs=(b,)),
        Operator("bt", "aten.t.default", (Ref("b"),), outputs=(Tensor((2, width), "float32", (1, 2)),)),
        Operator("dh", "aten.mm.default", (Ref("dy"), Ref("bt")), outputs=(h,)),
        Operator("xt", "aten.t.default", (Ref("input.0"),), outputs=(Tensor((4, each), "float32", (1, 4)),)),
        Operator("da", "aten.mm.default", (Ref("xt"), Ref("dh")), outputs=(a,)),
    )
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


class Line(nn.Module):
    """A convex task's model: one row of weights on what `Numbers` has."""

    def __init__(self) -> None:
        super().__init__()
        self.row = nn.Parameter(torch.zeros(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.row


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


def dropping() -> Task:
    """A perceptron that draws in the middle of its segments; masks are those of seed and sample on every device."""
    return replace(
        perceptron(), model=lambda: nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.5), nn.ReLU(), nn.Linear(16, 3))
    )


def layers(count: int, batch: int = 8, growth: int = 0) -> Graph:
    """Two small products, then `count` equal ones, or each wider by `growth` than the one before: forward `f0`, `f1`,
    ..; backward `w0`, .. of weights, `x0`, .. of what a layer reads. loss = sum of the last."""
    each, one = Affine(1), Tensor((), "float32")
    widths = [2, 3, *(4 + growth * i for i in range(count + 1))]
    names = ["a", "b", *(str(i) for i in range(count))]
    tensors = [Tensor((each, width), "float32") for width in widths]
    weights = [Tensor((i, o), "float32") for i, o in pairwise(widths)]
    reads = ["input.0", *(f"f{name}" for name in names)]
    operators = [
        Operator(f"f{name}", "aten.mm.default", (Ref(read), Ref(f"p{name}")), outputs=(out,))
        for name, read, out in zip(names, reads, tensors[1:], strict=False)
    ]
    operators.append(Operator("loss", "aten.sum.default", (Ref(reads[-1]),), outputs=(one,)))
    last = "dy"
    back = [Operator(last, "aten.expand.default", (Ref("tangent"), (each, widths[-1])), outputs=(tensors[-1],))]
    for i in reversed(range(len(names))):
        name, inner, weight = names[i], tensors[i], weights[i]
        turned = Tensor((widths[i], each), "float32", (1, widths[i]))
        back += [
            Operator(f"t{name}", "aten.t.default", (Ref(reads[i]),), outputs=(turned,), twin=f"f{name}"),
            Operator(f"w{name}", "aten.mm.default", (Ref(f"t{name}"), Ref(last)), outputs=(weight,), twin=f"f{name}"),
        ]
        if i:
            twin, flipped = f"f{name}", Tensor((widths[i + 1], widths[i]), "float32", (1, widths[i + 1]))
            back += [
                Operator(f"u{name}", "aten.t.default", (Ref(f"p{name}"),), outputs=(flipped,), twin=twin),
                Operator(
                    f"x{name}", "aten.mm.default", (Ref(last), Ref(f"u{name}")), outputs=(inner,), twin=f"f{name}"
                ),
            ]
            last = f"x{name}"
    return Graph(
        f"layers-{count}", 8, (*operators, *(replace(o, phase=Phase.BACKWARD) for o in back)),
        tuple(Parameter(f"p{name}", weight) for name, weight in zip(names, weights, strict=True)), (),
        (Constant("tangent", one, b"\x00\x00\x80\x3f"),), (("input.0", tensors[0]),), Ref("loss"), None,
        tuple((f"p{name}", Ref(f"w{name}")) for name in reversed(names)), global_batch=batch, samples=64,
    )  # fmt: skip


def frozen(graph: Graph, *names: str) -> Graph:
    """The step of `layers` where these, its first ones, are not trained: nothing comes back to them."""
    still = [f"{kind}{name}" for name in names for kind in "twux"] + [f"{kind}{len(names) - 2}" for kind in "ux"]
    return replace(
        graph, operators=tuple(o for o in graph.operators if o.name not in still),
        parameters=tuple(replace(p, trainable=p.name[1:] not in names) for p in graph.parameters),
        gradients=tuple((p, ref) for p, ref in graph.gradients if p[1:] not in names),
    )  # fmt: skip


def tied(graph: Graph, first: int = 0, last: int = 7) -> Graph:
    """The step of `layers` where two of its equal layers have one weight."""
    one, other = f"p{first}", f"p{last}"

    def same(ref: Ref) -> Ref:
        return replace(ref, name=one) if ref.name == other else ref

    weight = next(p.tensor for p in graph.parameters if p.name == one)
    both = (Ref(f"w{last}"), Ref(f"w{first}"))
    add = Operator(f"s{first}", "aten.add.Tensor", both, outputs=(weight,), phase=Phase.BACKWARD)
    return replace(
        graph, operators=(*(reading(each, same) for each in graph.operators), add),
        parameters=tuple(p for p in graph.parameters if p.name != other),
        gradients=tuple((n, Ref(add.name) if n == one else ref) for n, ref in graph.gradients if n != other),
    )  # fmt: skip
