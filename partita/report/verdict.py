"""What `verify` finds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Verdict:
    """`equal` within `tolerance` in fp64 `against` the named serial training.

    fp32's difference stands beside that of a control whose sums are only ordered otherwise. `because` says why they
    differ, where that is known.
    """

    equal: bool
    semantics: str
    max_difference: float
    tolerance: float
    against: str
    fp32_difference: float
    control_difference: float
    because: str = ""
