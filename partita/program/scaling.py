"""How a loss is scaled so that short gradients neither vanish nor overflow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

LARGEST: Final = 2.0**32
SKIPPED: Final = 40  # steps in a row without a usable gradient after which a run is given up


@dataclass(frozen=True, slots=True)
class Scaling:
    """The loss is multiplied by a scale that begins as `start`, gradients are divided by it in the precision of their
    masters. A step whose gradients are not finite is left out and halves the scale, `growth` good ones in a row double
    it; with a growth of 0 it stays (ME-11; Micikevicius et al. 2018)."""

    start: float
    growth: int

    def after(self, scale: float, good: int, finite: bool) -> tuple[float, int]:
        """(scale, good steps in a row, skipped ones as a negative number) after a step."""
        good = max(good, 0) + 1 if finite else min(good, 0) - 1
        if not self.growth:
            return scale, good
        if not finite:
            return scale / 2, good
        return (min(scale * 2, LARGEST), 0) if good == self.growth else (scale, good)
