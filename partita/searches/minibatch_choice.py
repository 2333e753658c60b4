"""Minibatches weighed against each other: what each takes to a loss, and which of them are good both ways."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from partita.searches.steps_to_loss import MeasuredMinibatch, StepsToLoss
from partita.units import Seconds, show_seconds

USED: Final = 0.9  # of the most samples a second, from which on a minibatch keeps the devices busy
WORSE: Final = 0.1  # by which a good minibatch's loss after equally many samples may be above the least


@dataclass(frozen=True, slots=True)
class MinibatchChoice:
    """The best plan of a minibatch: `steps` of them to the target loss, by the law, of `step_seconds` each by costs
    from `costs`. `good`: both busy and learning (`both_good`), by the costs that all minibatches were looked at by."""

    point: MeasuredMinibatch
    steps: float
    plan: str
    step_seconds: Seconds
    fits: bool
    costs: str
    good: bool = False

    @property
    def seconds(self) -> Seconds:
        """To the target loss."""
        return self.steps * self.step_seconds

    @property
    def samples_per_second(self) -> float:
        """Samples a second that its best plan trains on."""
        return self.point.batch / self.step_seconds


def both_good(minibatches: Iterable[MinibatchChoice]) -> frozenset[int]:
    """The minibatches between too small, where devices are not busy, and too large, where the same samples teach less
    (MX-01's region B): samples a second within USED of the most, held-out loss after equally many samples within WORSE
    of the least. None where those losses are not known."""
    there = [each for each in minibatches if each.fits]
    if not there or not all(each.point.loss for each in there):
        return frozenset()
    most, least = max(each.samples_per_second for each in there), min(each.point.loss for each in there)
    return frozenset(
        each.point.batch
        for each in there
        if each.samples_per_second >= USED * most and each.point.loss <= (1 + WORSE) * least
    )


def in_words(minibatches: tuple[MinibatchChoice, ...], known: StepsToLoss) -> str:
    """What the first of them takes to the loss, the second beside it, and where both are good."""
    best, law = minibatches[0], known.law
    at = f" at rate {best.point.rate:g}" if best.point.rate else ""
    words = (
        f"of {len(minibatches)} minibatches {best.point.batch}{at} is soonest at a loss of {known.target:g}: "
        f"{best.steps:.0f} steps of {show_seconds(best.step_seconds)} are {show_seconds(best.seconds)}"
    )
    if len(minibatches) > 1:
        other = minibatches[1]
        words += f"; {other.point.batch} would take {other.seconds / best.seconds:.2f} times as long"
    if 0 < law.critical < math.inf:
        words += f"; larger ones stop saving steps at about {law.critical:.3g} (R^2 {law.r2:.3f})"
    good = sorted(each.point.batch for each in minibatches if each.good)
    if good:
        words += (
            f"; from {good[0]} to {good[-1]} a minibatch has {USED:.0%} of the most samples a second and, after "
            f"{known.samples} samples, a loss within {WORSE:.0%} of the least"
        )
    elif known.samples:
        words += "; none both keeps the devices busy and learns as much from a sample as the others"
    return words
