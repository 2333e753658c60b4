"""How much of a bucket an optimizer steps at once."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Final

from partita.units import Bytes

STRIP: Final[Bytes] = 2**20


def strips_of(sizes: Sequence[Bytes], kinds: Sequence[Hashable] = ()) -> list[tuple[int, int]]:
    """Runs (from, to) of adjacent pieces of these sizes. One ends where another of the `kinds` begins, and where the
    next piece does not fit into STRIP bytes; a larger piece is one of its own."""
    found: list[tuple[int, int]] = []
    held = 0
    for i, size in enumerate(sizes):
        if i and held + size <= STRIP and (not kinds or kinds[i] == kinds[i - 1]):
            found[-1], held = (found[-1][0], i + 1), held + size
        else:
            found.append((i, i + 1))
            held = size
    return found
