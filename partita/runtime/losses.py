"""The loss of a step out of what every rank saw of it."""

from __future__ import annotations

from collections.abc import Iterable

from partita.runtime.rank import Rank

Row = tuple[int, float, float]


def rows_of(rank: Rank) -> list[Row]:
    """(step, its part of the loss, what that part weighs), step by step; a part of a mean, which is already weighed by
    the samples' share, weighs 0."""
    steps = sorted(rank.losses.keys() | rank.weights.keys())
    return [(step, float(rank.losses.get(step, 0.0)), float(rank.weights.get(step, 0.0))) for step in steps]


def totals(rows: Iterable[Row]) -> dict[int, float]:
    """Step -> loss: the parts' sum, over the sum of their weights where they have any."""
    sums: dict[int, tuple[float, float]] = {}
    for step, loss, weight in rows:
        before = sums.get(step, (0.0, 0.0))
        sums[step] = (before[0] + loss, before[1] + weight)
    return {step: loss / weight if weight else loss for step, (loss, weight) in sorted(sums.items())}
