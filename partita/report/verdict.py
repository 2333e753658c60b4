"""The result of `verify`."""

from __future__ import annotations

from dataclasses import dataclass

from partita.report.answer import Answer
from partita.report.printed import Printed


@dataclass(frozen=True)
class Verdict(Printed):
    """Whether weights are `equal` within `tolerance` in fp64, `against` the named serial training.

    `fp32_difference` is to be compared with `control_difference`, that of a training which differs only in the order of
    sums. `because` says why weights differ, if that is known.
    """

    equal: bool
    semantics: str
    max_difference: float
    tolerance: float
    against: str
    fp32_difference: float
    control_difference: float
    because: str = ""

    def _answer(self) -> Answer:
        from partita.report.answers import verdict_answer

        return verdict_answer(self, "the plan")
