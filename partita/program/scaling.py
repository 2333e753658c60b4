"""Factors of gradients: loss scaling for half precision, and bounds on norms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

LARGEST: Final = 2.0**32
SKIPPED: Final = 40  # steps in a row without a usable gradient after which a run is given up
MARGIN: Final = 1e-6  # that torch.nn.utils.clip_grad_norm_ adds to a norm, which may be 0, before it divides by it


def bounding(total: float, norm: float) -> float:
    """The factor, at most 1, that brings the norm `total` down to `norm`; as `runtime/bounds` has it of tensors."""
    return min(norm / (total + MARGIN), 1.0)


@dataclass(frozen=True, slots=True)
class Scaling:
    """Dynamic loss scaling (ME-11; Micikevicius et al. 2018).

    The loss is multiplied by a scale, at first `start`, and gradients are divided by it in the masters' precision. A
    step with gradients that are not finite is skipped and halves the scale; `growth` good steps in a row double it (0:
    the scale is constant).
    """

    start: float
    growth: int

    def after(self, scale: float, good: int, finite: bool) -> tuple[float, int]:
        """(scale, good steps in a row, or minus the number of skipped ones) after a step."""
        good = max(good, 0) + 1 if finite else min(good, 0) - 1
        if not self.growth:
            return scale, good
        if not finite:
            return scale / 2, good
        return (min(scale * 2, LARGEST), 0) if good == self.growth else (scale, good)
