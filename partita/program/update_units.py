"""Which pieces of a bucket an optimizer updates as one tensor."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Final

from partita.units import Bytes

UNIT_BYTES: Final[Bytes] = 2**20  # small enough to stay in a cache while a rule reads it several times


def units_of(sizes: Sequence[Bytes], kinds: Sequence[Hashable] = ()) -> list[tuple[int, int]]:
    """(start, stop) of the adjacent pieces that make up each unit, given the pieces' sizes in bytes.

    Pieces of different `kinds` are never in one unit. A unit has at most UNIT_BYTES; a larger piece is a unit by
    itself.
    """
    found: list[tuple[int, int]] = []
    held = 0
    for i, size in enumerate(sizes):
        if i and held + size <= UNIT_BYTES and (not kinds or kinds[i] == kinds[i - 1]):
            found[-1], held = (found[-1][0], i + 1), held + size
        else:
            found.append((i, i + 1))
            held = size
    return found
