"""The held-out losses that a run finds on its way: which is the best one, and whether training is over by them.

after step    10     20     30     40
loss          0.9    0.5    0.6    0.7     the best after step 20, two evaluations ago: over with a patience of 2
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isnan
from typing import Final, TypeAlias

HeldOut: TypeAlias = tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class EvaluationPolicy:
    """The held-out loss is computed every so many steps (`every`, 0: at the end only); training ends after `patience`
    evaluations in a row that were no better than one before (0: it does not)."""

    every: int = 0
    patience: int = 0


NONE: Final = EvaluationPolicy()


def best_of(found: HeldOut) -> tuple[int, float] | None:
    """(step, loss) of the least loss, the first one where several are equal; None if there is no number yet."""
    return min(((step, loss) for step, loss in found if not isnan(loss)), key=lambda each: each[1], default=None)


def owed(found: HeldOut, step: int, every: int) -> bool:
    """Whether a run that goes on after `step` steps has not yet been evaluated since the last multiple of `every`."""
    return every > 0 and step // every > (found[-1][0] if found else 0) // every


def taken(found: HeldOut, steps: int) -> int:
    """How many steps a run of `steps` steps took that found these, of which the last is of its end."""
    return found[-1][0] if found else steps


def ended_early(found: HeldOut, steps: int) -> str:
    """A sentence on a run that ended before all its `steps`, "" on one that did not."""
    if taken(found, steps) == steps:
        return ""
    best = best_of(found)
    why = f"no held-out loss since step {best[0]} was better than {best[1]:.6g}" if best else "no held-out loss was one"
    return f"training ended after {taken(found, steps)} of {steps} steps, for {why}"


def is_over(found: HeldOut, patience: int) -> bool:
    """Whether so many evaluations have come since the best one, or without any number."""
    best = best_of(found)
    since = sum(1 for step, _ in found if best is None or step > best[0])
    return 0 < patience <= since
