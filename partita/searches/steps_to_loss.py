"""How many steps minibatches of a size take to a loss, measured, and the law through that.

    K(B) = floor (1 + critical / B)

    log K |\\                      Twice a minibatch far below `critical` takes half as many steps,
          | \\                     twice one far above it as many: what it saves in noise is gone.
          |  `-._
          |      `-------- floor
          +------|-------- log B
              critical

Shallue et al., "Measuring the effects of data parallelism on neural network training", 2018; the law is McCandlish et
al.'s, "An empirical model of large-batch training", 2018. It makes time to a loss B-dependent: K(B) x a step's seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite, log
from typing import Final

from partita.errors import OptionError

LEAST_POINTS: Final = 3  # two fix the law, and say nothing of whether it holds
HINT: Final = "benchmarks/minibatch/run.py measures and writes them"


@dataclass(frozen=True, slots=True)
class MeasuredMinibatch:
    """Minibatches of `batch` samples take `steps` steps to the target, at the `rate` that needs fewest (0: not said);
    `loss` is the held-out loss after equally many samples for every minibatch, at the rate that is best for that."""

    batch: int
    steps: float
    rate: float = 0.0
    loss: float = 0.0


@dataclass(frozen=True)
class MinibatchLaw:
    """`floor` steps are taken however large a minibatch is, and `noise` / B more; `r2` says how much of what log K
    varies by it accounts for (1: all)."""

    floor: float
    noise: float
    r2: float

    def steps(self, batch: int) -> float:
        """K(B)."""
        return self.floor + self.noise / batch

    @property
    def critical(self) -> float:
        """The minibatch that takes twice the floor; inf where no floor is to be seen."""
        return self.noise / self.floor if self.floor else inf


@dataclass(frozen=True)
class StepsToLoss:
    """Steps to the held-out loss `target`, by minibatch, of the task of that name; `samples` is after how many the
    points' `loss` was taken (0: it was not). Raises OptionError for points that make no law."""

    target: float
    points: tuple[MeasuredMinibatch, ...]
    task: str = ""
    samples: int = 0

    def __post_init__(self) -> None:
        batches = [point.batch for point in self.points]
        if len(batches) < LEAST_POINTS or batches != sorted(set(batches)) or batches[0] < 1:
            raise OptionError(
                f"steps to a loss are known for the minibatches {batches}; give {LEAST_POINTS} or more, from 1 sample "
                f"on, each once and the smallest first: {HINT}"
            )
        for point in self.points:
            if not (isfinite(point.steps) and point.steps > 0):
                raise OptionError(
                    f"minibatches of {point.batch} samples take {point.steps} steps to the loss; give a number above 0"
                )

    @property
    def law(self) -> MinibatchLaw:
        """The law that is nearest to the points."""
        return fitted(self.points)


def fitted(points: Sequence[MeasuredMinibatch]) -> MinibatchLaw:
    """floor and noise >= 0 with the least sum of squared *relative* errors, ((floor + noise / B) / K - 1)^2: a step too
    many of ten weighs what a hundred of a thousand do, so that the smallest minibatches do not settle all."""
    # Linear in both: rows (1 / K, 1 / (K B)), each to be 1.
    rows = [(1 / point.steps, 1 / (point.steps * point.batch)) for point in points]
    aa, ab, bb = (sum(r[i] * r[j] for r in rows) for i, j in ((0, 0), (0, 1), (1, 1)))
    a, b = sum(r[0] for r in rows), sum(r[1] for r in rows)
    rest = aa * bb - ab * ab
    floor, noise = (a * bb - b * ab) / rest, (b * aa - a * ab) / rest
    if floor < 0:
        floor, noise = 0.0, b / bb
    elif noise < 0:
        floor, noise = a / aa, 0.0
    logs = [log(point.steps) for point in points]
    mean = sum(logs) / len(logs)
    off = sum((log(floor + noise / p.batch) - each) ** 2 for p, each in zip(points, logs, strict=True))
    all_of_it = sum((each - mean) ** 2 for each in logs)
    return MinibatchLaw(floor, noise, 1 - off / all_of_it if all_of_it else 1.0)


def slope(low: MeasuredMinibatch, high: MeasuredMinibatch) -> float:
    """d log K / d log B as it was measured: -1 where twice the minibatch halves the steps, 0 where it does nothing."""
    return log(high.steps / low.steps) / log(high.batch / low.batch)
