"""Two graphs of one step at two batch sizes -> one graph for any: what differs is solved from the two points."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

from partita.graph.batch import substitute
from partita.graph.graph import Graph
from partita.graph.operator import Operator, references
from partita.graph.tensor import Affine, Ratio, Tensor

RESHAPES = ("aten.view.default", "aten._unsafe_view.default", "aten.reshape.default")


class Unlike(Exception):
    """The two graphs are not one step at two batch sizes; the text says where."""


def unify(one: Graph, two: Graph, batch: int) -> Graph:
    """The symbolic graph that gives `one` at `one.batch` and `two` at `two.batch`; `batch` is what it will be asked for.

    An int that differs becomes Affine (each and rest whole), a float Ratio (power 1 or -1). Raises Unlike where the
    structures differ, a number follows neither law, or a reshape would not keep its elements at a third batch size.
    """
    points = Points(one.batch, two.batch)
    if len(one.operators) != len(two.operators):
        raise Unlike(f"{len(one.operators)} operators on {one.batch} samples, {len(two.operators)} on {two.batch}")
    for part in ("parameters", "buffers", "constants", "loss", "weight", "gradients", "mutations"):
        if getattr(one, part) != getattr(two, part):
            raise Unlike(f"the {part} change with the number of samples")
    operators = tuple(points.operator(a, b) for a, b in zip(one.operators, two.operators, strict=True))
    inputs = tuple(
        (name, points.tensor(a, b)) for (name, a), (_, b) in zip(one.inputs, two.inputs, strict=True)
    )  # fmt: skip
    graph = replace(one, batch=batch, operators=operators, inputs=inputs, symbolic=True)
    for point in (one, two):
        if not _agrees(substitute(graph, point.batch), point):
            raise Unlike(f"the solved graph is not the one captured on {point.batch} samples")
    _check_reshapes(substitute(graph, 2 * one.batch + 3 * two.batch))
    return graph


@dataclass
class Points:
    """The two batch sizes, and the tensors already joined."""

    one: int
    two: int
    known: dict[tuple[Tensor, Tensor], Tensor] = field(default_factory=dict)

    def operator(self, a: Operator, b: Operator) -> Operator:
        if a == b:
            return a
        if (a.name, a.target, a.several, a.phase, len(a.outputs)) != (b.name, b.target, b.several, b.phase, len(b.outputs)):
            raise Unlike(f"{a.name} ({a.target}) on {self.one} samples is {b.name} ({b.target}) on {self.two}")
        keywords = tuple((k, v) for k, v in b.keywords)
        if [k for k, _ in a.keywords] != [k for k, _ in keywords]:
            raise Unlike(f"{a.name} has other keywords on {self.two} samples")
        outputs = []
        for x, y in zip(a.outputs, b.outputs, strict=True):
            if (x is None) is not (y is None):
                raise Unlike(f"{a.name} computes other results on {self.two} samples")
            outputs.append(None if x is None or y is None else self.tensor(x, y))
        return replace(
            a,
            arguments=self.argument(a.arguments, b.arguments, a.name),
            keywords=tuple((k, self.argument(v, w, a.name)) for (k, v), (_, w) in zip(a.keywords, keywords, strict=True)),
            outputs=tuple(outputs),
        )

    def tensor(self, a: Tensor, b: Tensor) -> Tensor:
        found = self.known.get((a, b))
        if found is None:
            if a.dtype != b.dtype or len(a.shape) != len(b.shape):
                raise Unlike(f"a tensor {a} is {b} on {self.two} samples")
            strides = self.argument(a.strides, b.strides, "a stride") if len(a.strides) == len(b.strides) else ()
            if len(a.strides) != len(b.strides):
                raise Unlike(f"a tensor {a} has other strides on {self.two} samples")
            found = self.known[a, b] = Tensor(self.argument(a.shape, b.shape, "a shape"), a.dtype, strides)
        return found

    def argument(self, a: Any, b: Any, where: str) -> Any:
        if isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b):
            return tuple(self.argument(x, y, where) for x, y in zip(a, b, strict=True))
        if type(a) is type(b) and (a == b or (isinstance(a, float) and math.isnan(a) and math.isnan(b))):
            return a
        if type(a) is int and type(b) is int:
            each, odd = divmod(b - a, self.two - self.one)
            if not odd:
                return Affine(each, a - each * self.one)
        if type(a) is float and type(b) is float:
            for power in (-1, 1):
                ratio = Ratio(_round(a * float(self.one) ** -power), power)
                if _near(ratio.at(self.one), a) and _near(ratio.at(self.two), b):
                    return ratio
        raise Unlike(f"{a!r} in {where} becomes {b!r} on {self.two} samples, which follows no law that is known")


def _round(value: float) -> float:
    """The nearest short decimal where it is within rounding of it."""
    short = float(f"{value:.12g}")
    return short if _near(short, value) else value


def _near(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=1e-14)


def _agrees(made: Graph, seen: Graph) -> bool:
    """Equal, floats within rounding."""
    return made.inputs == seen.inputs and all(
        a == b or (a.outputs == b.outputs and _close(a.arguments, b.arguments) and _close(a.keywords, b.keywords))
        for a, b in zip(made.operators, seen.operators, strict=True)
    )


def _close(a: Any, b: Any) -> bool:
    if isinstance(a, tuple):
        return isinstance(b, tuple) and len(a) == len(b) and all(map(_close, a, b))
    return _near(a, b) or (a != a and b != b) if isinstance(a, float) and isinstance(b, float) else bool(a == b)


def _check_reshapes(graph: Graph) -> None:
    """A number that grows with the square of the batch looks affine from two points; here it loses elements."""
    for operator in graph.operators:
        if operator.target in RESHAPES:
            given, made = graph.tensor(next(references(operator.arguments))), operator.outputs[0]
            if made is not None and given.elements() != made.elements():
                raise Unlike(f"{operator.name} does not follow the number of samples linearly")
