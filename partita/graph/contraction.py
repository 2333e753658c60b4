"""Matrix products inside an operator, read off its pattern.

mm                 n i, i o -> n o           rows n, columns o, depth i
convolution        n i y x, o i k -> n o y x rows n y x, columns o, depth i k
its weight's       n o y x, n i y x -> o i k rows o, columns i k, depth n y x
attention          n h s d, n h t d -> (s t) parts n h, rows s, columns t, depth d; scores stay on the chip
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Final

from partita.graph.formula import Call
from partita.graph.graph import Graph
from partita.graph.operator import Operator
from partita.graph.pattern import Axes, Output, Pattern
from partita.graph.patterns import pattern_of

PAIRS: Final = {  # the two inputs of each product, and which output it makes
    **dict.fromkeys(("aten.mm", "aten.bmm", "aten.convolution", "aten._grouped_mm"), ((0, 1, 0),)),
    **dict.fromkeys(("aten.addmm", "aten.baddbmm"), ((1, 2, 0),)),
    "aten.convolution_backward": ((0, 2, 0), (0, 1, 1)),
    "transformers.grouped_mm_fallback": ((0, 1, 0),),
    "transformers.grouped_mm_fallback_backward": ((3, 1, 0), (0, 3, 1)),
}
INNER: Final = ("d", "v")  # labels of an attention that are not of its scores


@dataclass(frozen=True, slots=True)
class Contraction:
    """`parts` products [rows, depth] x [depth, columns], `times` one after another."""

    times: float
    parts: int
    rows: int
    columns: int
    depth: int

    @property
    def flops(self) -> float:
        """Floating-point operations, a multiply-add being two."""
        return 2.0 * self.times * self.parts * self.rows * self.columns * self.depth


def contractions_of(operator: Operator, graph: Graph, batch: int) -> tuple[Contraction, ...]:
    """The products of an operator on `batch` samples; none where it has none, or none that its pattern tells."""
    pattern, call = pattern_of(operator, graph), Call(operator, graph)
    if pattern is None or not pattern.work:
        return ()
    if "scaled_dot_product" in call.kind:
        return _attention(pattern, batch)
    if call.kind.startswith("partita.") and "_layer" in call.kind:
        return _recurrence(pattern, batch)
    found = []
    for first, second, place in PAIRS.get(call.kind, ()):
        made = pattern.outputs[place]
        if made is not None and operator.outputs[place] is not None:
            found.append(_product(pattern, pattern.inputs[first], pattern.inputs[second], made, batch))
    return tuple(found)


def _product(pattern: Pattern, first: Axes, second: Axes, made: Output, batch: int) -> Contraction:
    """Dimensions of the output that both inputs have are parts, those of the first rows, all others columns; what the
    output lacks is summed over. A window's places count as one dimension, whichever side names them."""
    a, b, out = (_names(axes) for axes in (first, second, made.axes))
    parts, rows, columns, depth = (list[str]() for _ in range(4))
    for name in dict.fromkeys(name for work in pattern.work for name in work.labels):
        low = name.lower()
        kind = depth if low not in out else columns if low not in a else parts if low in b else rows
        kind.append(name)
    sizes = [pattern.size(tuple(names), batch) for names in (parts, rows, columns, depth)]
    return Contraction(1.0, *sizes)


def _names(axes: Axes) -> set[str]:
    return {name.lower() for dim in axes for name in dim}


def scores_of(operator: Operator, graph: Graph, batch: int) -> float:
    """How many scores an attention on `batch` samples exponentiates on the chip, in either pass; 0 for all else."""
    pattern = pattern_of(operator, graph) if "scaled_dot_product" in Call(operator, graph).kind else None
    if pattern is None or not pattern.work:
        return 0.0
    axes = (name for name in pattern.work[0].labels if name not in INNER)
    return _scored(pattern) * prod(pattern.size((name,), batch) for name in axes)


def _scored(pattern: Pattern) -> float:
    """The part of an attention's scores that is computed: of a causal one half."""
    return 1.0 if pattern.label("s").splits else 0.5


def _attention(pattern: Pattern, batch: int) -> tuple[Contraction, ...]:
    found = []
    for work in pattern.work:
        inner = tuple(name for name in work.labels if name in INNER)
        parts = tuple(name for name in work.labels if name not in ("s", "t", *inner))
        sizes = [pattern.size(names, batch) for names in (parts, ("s",), ("t",), inner)]
        found.append(Contraction(_scored(pattern) * work.factor / 2, *sizes))
    return tuple(found)


def _recurrence(pattern: Pattern, batch: int) -> tuple[Contraction, ...]:
    """All steps' inputs at once, and the states step by step; in backward those of gradients, from which the gradients
    of inputs and of both weights come at once."""
    n, t, q, i, f = (pattern.size((name,), batch) for name in "ntqif")
    if pattern.work[0].factor == 2:
        return (Contraction(1.0, 1, t * n, q, i), Contraction(t, 1, n, q, f))
    return (
        Contraction(t, 1, n, f, q), Contraction(1.0, 1, t * n, i, q), Contraction(1.0, 1, q, i, t * n),
        Contraction(1.0, 1, q, f, t * n),
    )  # fmt: skip
