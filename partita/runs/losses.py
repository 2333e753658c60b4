"""The loss of each step, from the parts that the ranks have computed."""

from __future__ import annotations

from collections.abc import Iterable

from partita.checkpoints.entry import Entry
from partita.checkpoints.holding import Losses
from partita.checkpoints.restore import Checkpoint
from partita.runtime.rank import Rank

Row = tuple[int, float, float]


def loss_rows(rank: Rank, since: int = 0) -> list[Row]:
    """(step, this rank's part of the loss, the weight of that part) for each step from `since` on. A part of a mean is
    already weighted by its share of the samples, and has weight 0."""
    steps = sorted(step for step in rank.losses.keys() | rank.weights.keys() if step >= since)
    return [(step, float(rank.losses.get(step, 0.0)), float(rank.weights.get(step, 0.0))) for step in steps]


def totals(rows: Iterable[Row]) -> dict[int, float]:
    """Step -> loss: the sum of its parts, divided by the sum of their weights if they have any."""
    sums: dict[int, tuple[float, float]] = {}
    for step, loss, weight in rows:
        before = sums.get(step, (0.0, 0.0))
        sums[step] = (before[0] + loss, before[1] + weight)
    return {step: loss / weight if weight else loss for step, (loss, weight) in sorted(sums.items())}


def losses_of(saved: Checkpoint) -> Losses:
    """(step, seconds, loss, 0) of all steps up to a checkpoint, from the parts that the ranks saved."""
    contents = saved.contents
    rows = [row for rank in contents.ranks("losses") for row in contents.tensor(Entry("losses", rank=rank)).tolist()]
    seconds = {int(step): second for step, second, _, _ in reversed(rows)}
    total = totals((int(step), loss, weight) for step, _, loss, weight in rows)
    return [(step, seconds[step], loss, 0.0) for step, loss in total.items()]
