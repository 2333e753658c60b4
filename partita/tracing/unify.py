"""Two graphs of one step at two batch sizes -> one graph for any: what differs is solved from the two points."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from partita.graph.batch import substitute
from partita.graph.graph import Graph
from partita.graph.operator import Operator, Symbol
from partita.graph.tensor import Affine, Ratio, Tensor

NUMBERS = {"float32": "<f", "float64": "<d", "int32": "<i", "int64": "<q"}


class Unlike(Exception):
    """The graphs are not one step at several batch sizes; the text says where, and `other_operators` whether they have
    other operators, as where a step goes over its samples one by one."""

    def __init__(self, text: str, *, other_operators: bool = False) -> None:
        super().__init__(text)
        self.other_operators = other_operators


def unify(at: Callable[[int], Graph], sizes: tuple[int, int, int], batch: int) -> Graph:
    """The symbolic graph that gives `at(size)` at any size, its own batch being `batch`.

    It is solved from the first two sizes: an int that differs becomes Affine (each and rest whole), a float Ratio
    (power 1 or -1; with -1 also less a whole number of elements, as in a variance's divisor). Two points do not tell a
    line from a square, but a square that is taken for a line has a rest: where a number has one, the graph is also
    compared with that of the third size. Raises Unlike where the structures differ or a number follows no such law.
    """
    first, second = at(sizes[0]), at(sizes[1])
    points = Points(first.batch, second.batch)
    one, two = _numbers_made(first, second), _numbers_made(second, first)
    _check_structure(one, two)
    operators = tuple(points.operator(a, b) for a, b in zip(one.operators, two.operators, strict=True))
    inputs = tuple(
        (name, points.tensor(a, b)) for (name, a), (_, b) in zip(one.inputs, two.inputs, strict=True)
    )  # fmt: skip
    graph = replace(one, batch=batch, operators=operators, inputs=inputs, symbolic=True)
    for seen in (one, two, *([_numbers_made(at(sizes[2]), first)] if points.rests else [])):
        _check_same(substitute(graph, seen.batch), seen)
    return graph


def _numbers_made(graph: Graph, other: Graph) -> Graph:
    """Scalar constants that differ from the other graph's, such as a count of samples, become `aten.full` operators."""
    pairs = zip(graph.constants, other.constants, strict=False)
    moved = [
        a for a, b in pairs if a != b and a.tensor == b.tensor and not a.tensor.shape and a.tensor.dtype in NUMBERS
    ]
    made = [
        Operator(
            constant.name, "aten.full.default", ((), struct.unpack(NUMBERS[constant.tensor.dtype], constant.data)[0]),
            (("dtype", Symbol("dtype", constant.tensor.dtype)), ("device", Symbol("device", ""))), (constant.tensor,),
        )
        for constant in moved
    ]  # fmt: skip
    if not made:
        return graph
    left = tuple(constant for constant in graph.constants if constant not in moved)
    return replace(graph, constants=left, operators=(*made, *graph.operators))


@dataclass
class Points:
    """The two batch sizes, the tensors already joined, and whether some number has a rest."""

    one: int
    two: int
    known: dict[tuple[Tensor, Tensor], Tensor] = field(default_factory=dict)
    rests: bool = False

    def operator(self, a: Operator, b: Operator) -> Operator:
        """The operator that is `a` at the first batch size and `b` at the second one."""
        b = _saying(b, a)
        if a == b:
            return a
        if _kind(a) != _kind(b):
            raise Unlike(f"{a.name} ({a.target}) on {self.one} samples is {b.name} ({b.target}) on {self.two}")
        joined = [
            None if x is None or y is None else self.tensor(x, y) for x, y in zip(a.outputs, b.outputs, strict=True)
        ]
        return replace(
            a,
            arguments=self.argument(a.arguments, b.arguments, a.name),
            keywords=self.argument(a.keywords, b.keywords, a.name),
            outputs=tuple(joined),
        )

    def tensor(self, a: Tensor, b: Tensor) -> Tensor:
        """The tensor spec that is `a` at the first batch size and `b` at the second one."""
        found = self.known.get((a, b))
        if found is None:
            if a.dtype != b.dtype:
                raise Unlike(f"a tensor of {a.dtype} is one of {b.dtype} on {self.two} samples")
            found = self.known[a, b] = Tensor(
                self.argument(a.shape, b.shape, "a shape"), a.dtype, self.argument(a.strides, b.strides, "the strides")
            )
        return found

    def argument(self, a: Any, b: Any, where: str) -> Any:
        """The argument that is `a` at the first batch size and `b` at the second one; `where` stands in errors."""
        if isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b):
            return tuple(self.argument(x, y, where) for x, y in zip(a, b, strict=True))
        if type(a) is type(b) and (a == b or (isinstance(a, float) and math.isnan(a) and math.isnan(b))):
            return a
        if type(a) is int and type(b) is int:
            each, odd = divmod(b - a, self.two - self.one)
            if not odd:
                found = Affine(each, a - each * self.one)
                self.rests |= found.rest != 0
                return found
        if type(a) is float and type(b) is float:
            for power in (-1, 1):
                ratio = Ratio(_round(a * float(self.one) ** -power), power)
                if _near(ratio.at(self.one), a) and _near(ratio.at(self.two), b):
                    return ratio
            if (divided := self._divided(a, b)) is not None:
                self.rests = True
                return divided
        raise Unlike(f"{a!r} in {where} becomes {b!r} on {self.two} samples, which follows no law that is known")

    def _divided(self, a: float, b: float) -> Ratio | None:
        """The law `scale / (samples + rest)` of two numbers, if the rest is whole or one part of a whole number: what a
        variance divides by is a sample less where it goes over samples, and 1/64 of one where these have 64 elements
        each."""
        if not (math.isfinite(a) and math.isfinite(b)):
            return None
        solved = (b * self.two - a * self.one) / (a - b)
        wholes = [round(solved), *([1 / round(1 / solved)] if 0 < abs(solved) < 1 else [])]
        for rest in (float(whole) for whole in wholes if whole and math.isclose(whole, solved, abs_tol=1e-13)):
            ratio = Ratio(_round(a * (self.one + rest)), -1, rest)
            if _near(ratio.at(self.one), a) and _near(ratio.at(self.two), b):
                return ratio
        return None


def _saying(check: Operator, other: Operator) -> Operator:
    """A check with the message of another one, in which a number of samples may stand; any other operator as it is."""
    if not check.checks or check.target != other.target:
        return check
    return replace(check, arguments=(*check.arguments[:1], *other.arguments[1:]))


def _kind(operator: Operator) -> tuple[object, ...]:
    """What two operators must have in common."""
    made = tuple(out is None for out in operator.outputs)
    return operator.name, operator.target, operator.several, operator.phase, made, operator.module, operator.twin


def _round(value: float) -> float:
    """The nearest short decimal where it is within rounding of it."""
    short = float(f"{value:.12g}")
    return short if _near(short, value) else value


def _near(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=1e-14)


def _check_structure(one: Graph, two: Graph) -> None:
    if len(one.operators) != len(two.operators):
        text = f"{len(one.operators)} operators on {one.batch} samples, {len(two.operators)} on {two.batch}"
        raise Unlike(text, other_operators=True)
    for part in ("parameters", "buffers", "constants", "loss", "weight", "gradients", "mutations"):
        if getattr(one, part) != getattr(two, part):
            raise Unlike(f"the {part} change with the number of samples")


def _check_same(made: Graph, seen: Graph) -> None:
    """Raises Unlike for graphs that are not equal, floats within rounding."""
    _check_structure(made, seen)
    if made.inputs != seen.inputs:
        raise Unlike(f"the inputs do not follow the number of samples linearly, as {seen.batch} show")
    for a, own in zip(made.operators, seen.operators, strict=True):
        b = _saying(own, a)
        alike = _kind(a) == _kind(b) and a.outputs == b.outputs
        if not (alike and _close(a.arguments, b.arguments) and _close(a.keywords, b.keywords)):
            raise Unlike(f"{a.name} does not follow the number of samples linearly, as {seen.batch} show")


def _close(a: Any, b: Any) -> bool:
    if isinstance(a, tuple):
        return isinstance(b, tuple) and len(a) == len(b) and all(map(_close, a, b))
    return _near(a, b) or (a != a and b != b) if isinstance(a, float) and isinstance(b, float) else bool(a == b)
