"""Live bytes over time, by purpose."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Final

import numpy as np

from partita.arrays import Ints, Reals
from partita.program.timeline import PURPOSES
from partita.units import Bytes

MOMENTS: Final = 240  # at most, of a curve that is kept, predicted or measured
ByteSeries = Ints  # bytes by moment or operator and, where there is a second dimension, by purpose


@dataclass(frozen=True)
class MemoryCurve:
    """Live bytes as a step function of time: from `seconds[i]` to `seconds[i + 1]` they are `parts[i]`.

    Shapes [moments] (ascending) and [moments, PURPOSES].
    """

    seconds: Reals
    parts: ByteSeries

    @cached_property
    def totals(self) -> ByteSeries:
        """Bytes of all purposes, shape [moments]."""
        found: ByteSeries = self.parts.sum(axis=1)
        return found

    @property
    def peak(self) -> Bytes:
        """The most bytes at any moment."""
        return int(self.totals.max())

    def thinned(self, most: int) -> MemoryCurve:
        """At most `most` moments of the curve, the highest one of each interval, so that the peak is among them."""
        kept = highest(self.totals, most)
        return MemoryCurve(self.seconds[kept], self.parts[kept])


def highest(totals: ByteSeries, most: int) -> list[int]:
    """The index of the highest point in each of at most `most` equal intervals of a curve."""
    edges = np.unique(np.linspace(0, len(totals), most + 1).astype(int)).tolist()
    return [a + int(totals[a:b].argmax()) for a, b in pairwise(edges)]


def unit(part: str) -> ByteSeries:
    """One byte of the purpose `part`, as a row of PURPOSES."""
    found = np.zeros(len(PURPOSES), np.int64)
    found[PURPOSES.index(part)] = 1
    return found
