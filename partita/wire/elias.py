"""The length of numbers in Elias' gamma code, for predictions: expected for normally distributed numbers."""

from __future__ import annotations

from functools import cache
from math import exp, floor, pi, sqrt
from typing import Final

STEP: Final = 0.01
FAR: Final = 800  # steps
GAPS: Final = 4096


def gamma_bits(number: int) -> int:
    """Bits of a number >= 1 (Elias 1975)."""
    return 2 * (number.bit_length() - 1) + 1


@cache
def expected_bits(levels: int, group: int, dense: bool) -> float:
    """Bits a number that QSGD (QU-07) makes of groups of normal numbers: the gap from the last one that is not 0, its
    level and its sign; `dense`, its level plus one, and its sign where it is not 0."""
    none = coded = whole = 0.0
    for k in range(FAR):
        z = (k + 0.5) * STEP
        share = 2 * STEP * exp(-z * z / 2) / sqrt(2 * pi)
        low = floor(z * levels / sqrt(group))
        up = z * levels / sqrt(group) - low
        for level, part in ((low, share * (1 - up)), (low + 1, share * up)):
            level = min(level, levels)
            none += part * (not level)
            coded += part * (gamma_bits(level) + 1 if level else 0)
            whole += part * (gamma_bits(level + 1) + bool(level))
    if dense:
        return whole
    sent = 1 - none
    gaps = sum(sent * none ** (gap - 1) * gamma_bits(gap) for gap in range(1, GAPS))
    return sent * gaps + coded
