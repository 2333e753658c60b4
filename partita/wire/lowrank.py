"""Pieces of a bucket as matrices, sent as two thin factors (PowerSGD, EX-02).

piece    [out, in, 3, 3]  ->  out x 9 in        P: out x r        Q': r x 9 in

Vectors, and matrices that two factors would not make smaller, are sent as they are, together with the Ps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

Shapes = Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True)
class Factored:
    """A piece of `rows` x `columns` elements, sent as factors of rank `rank` (0: as it is)."""

    rows: int
    columns: int
    rank: int

    @property
    def elements(self) -> int:
        """The number of its elements."""
        return self.rows * self.columns

    @property
    def first(self) -> int:
        """The number of elements that its first factor P has; all of its own if it is sent as it is."""
        return self.rows * self.rank or self.elements

    @property
    def second(self) -> int:
        """The number of elements that its second factor Q has."""
        return self.rank * self.columns


def factored(shapes: Shapes, settings: Mapping[str, float]) -> tuple[Factored, ...]:
    """How the pieces of a bucket are sent, as matrices of dimension 0 by all others."""
    found = []
    for shape in shapes:
        rows = shape[0] if len(shape) > 1 else 1
        columns = prod(shape) // max(rows, 1)
        rank = min(int(settings["rank"]), rows, columns)
        found.append(Factored(rows, columns, rank if rank * (rows + columns) < rows * columns else 0))
    return tuple(found)


def factor_counts(shapes: Shapes, settings: Mapping[str, float]) -> tuple[int, ...]:
    """The elements of the first and of the second coding; only one if nothing is factored."""
    pieces = factored(shapes, settings)
    second = sum(piece.second for piece in pieces)
    return (sum(piece.first for piece in pieces), *((second,) if second else ()))


def factor_calls(settings: Mapping[str, float]) -> tuple[float, float]:
    """How many operators encoding and decoding a matrix run (`kernels/lowrank`): five for the first coding, for the
    second three and eight a column that becomes orthonormal to those before it, in the mean; and two."""
    return 4 * (settings["rank"] + 1), 2.0
