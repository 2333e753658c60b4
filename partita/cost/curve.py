"""Live bytes over time, by what they are for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from partita.program.timeline import PARTS
from partita.units import Bytes

Course = NDArray[np.int64]


@dataclass(frozen=True)
class Curve:
    """Live bytes at moments in rising order: `parts` [moments, PARTS] holds until the next moment."""

    seconds: NDArray[np.float64]
    parts: Course

    @cached_property
    def totals(self) -> Course:
        found: Course = self.parts.sum(axis=1)
        return found

    @property
    def peak(self) -> Bytes:
        return int(self.totals.max())

    @property
    def breakdown(self) -> dict[str, Bytes]:
        """What the bytes of the fullest moment are for."""
        return dict(zip(PARTS, self.parts[int(self.totals.argmax())].tolist(), strict=True))

    def thinned(self, most: int) -> Curve:
        """The fullest moment of each of `most` stretches, so that the peak stays."""
        kept = fullest(self.totals, most)
        return Curve(self.seconds[kept], self.parts[kept])


def fullest(totals: Course, most: int) -> list[int]:
    """Where the highest point of each of at most `most` stretches of a curve is."""
    edges = np.unique(np.linspace(0, len(totals), most + 1).astype(int)).tolist()
    return [a + int(totals[a:b].argmax()) for a, b in pairwise(edges)]


def unit(part: str) -> Course:
    """One byte of a part."""
    found = np.zeros(len(PARTS), np.int64)
    found[PARTS.index(part)] = 1
    return found
