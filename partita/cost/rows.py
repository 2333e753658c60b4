"""Values between measured ones: rows by size, linear in the logarithm of the size."""

from __future__ import annotations

from bisect import bisect_left
from functools import cache
from operator import itemgetter
from typing import TypeAlias

import numpy as np

from partita.arrays import Array, Reals
from partita.units import Bytes, Seconds

Rows: TypeAlias = tuple[tuple[float, float], ...]  # (where, value), by ascending bytes, seconds or numbers
Curve: TypeAlias = tuple[tuple[Bytes, Seconds, Seconds, float], ...]  # rows as in `wiring.Curves`, by ascending size


def interpolated(rows: Rows, sizes: Reals) -> Reals:
    """What rows (size, value), by ascending size, say of these sizes: linear in the logarithm of the size, in bytes or
    in seconds."""
    known, values = np.array(rows, np.float64).T
    found: Reals = np.interp(np.log(np.maximum(sizes, 1e-9)), np.log(known), values)
    return found


def value_at(rows: Rows, size: float) -> float:
    """The same of one size."""
    return float(interpolated(rows, np.array([size], np.float64))[0])


def waits_of(curve: Curve, sizes: Reals) -> tuple[Reals, Reals]:
    """Latencies and parts of a ring's bytes."""
    at, (known, waiting, part) = np.log(np.maximum(sizes, 1.0)), _columns(curve)
    return np.interp(at, known, waiting), np.interp(at, known, part)


def cores_of(curve: Curve, size: Bytes) -> Seconds:
    """Core-seconds on each rank, beyond the last row in proportion to the size."""
    above = bisect_left(curve, size, key=itemgetter(0))
    if above == len(curve):
        return curve[-1][2] * size / curve[-1][0]
    (low, _, first, _), (high, _, last, _) = curve[max(above - 1, 0)], curve[above]
    return first + (last - first) * (size - low) / max(high - low, 1)


@cache
def _columns(curve: Curve) -> tuple[Array, Reals, Reals]:
    size, waiting, _, part = np.array(curve, np.float64).T
    return np.log(np.maximum(size, 1.0)), waiting, part
