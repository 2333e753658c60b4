"""How many steps plans take to a loss, measured: what one that is not exact is compared with an exact one by.

    plan                   steps to the loss  x  a step's seconds  =  seconds to the loss
    ddp (any exact plan)         197                137 ms                 27.0 s
    local_sgd(period=8)          273                 98 ms                 26.8 s
                                measured          predicted

Statistical times hardware efficiency (MX-03). All exact plans learn alike, so one of them stands for all. Of others
only what was measured is known, on as many devices and with minibatches of that size: elsewhere a staleness, or the
mean of replicas, is another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Final, TypeAlias

from partita.errors import OptionError
from partita.units import Seconds

WINDOW: Final = 20  # steps over which a training loss is averaged: one minibatch's says little


@dataclass(frozen=True, slots=True)
class MeasuredPlan:
    """A recipe call or plan file, and after how many steps its training loss had come down to the target."""

    plan: str
    steps: float


@dataclass(frozen=True)
class StepsOfPlans:
    """Steps to the training loss `target`, by plan; those that had not come down to it after `within` steps are in
    `never`. The task of that name was trained with minibatches of `batch` samples on so many `devices`.

    Raises OptionError for a plan that stands there twice, and for steps that are none."""

    target: float
    plans: tuple[MeasuredPlan, ...]
    task: str = ""
    batch: int = 0
    devices: int = 0
    within: int = 0
    never: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        names = (*(one.plan for one in self.plans), *self.never)
        for twice in sorted(name for name in set(names) if names.count(name) > 1):
            raise OptionError(f"the steps of {twice} to the loss stand there twice; give them once")
        for one in self.plans:
            if one.steps <= 0:
                raise OptionError(f"{one.plan} takes {one.steps:g} steps to the loss; give a number above 0")


Curve: TypeAlias = Sequence[tuple[int, Seconds, float]]  # (step from 0 on, seconds since it began, training loss)


def reached(curves: Sequence[Curve], target: float) -> tuple[int, Seconds] | None:
    """After how many steps, and the median of the seconds, a training loss, the mean over WINDOW steps and over all
    `curves`, has come down to the target; of a run of fewer than ten times as many steps the mean over a tenth. None
    where it never has."""
    points = list(zip(*curves, strict=False))
    window = max(min(WINDOW, len(points) // 10), 1)
    losses = [fmean(loss for _, _, loss in point) for point in points]
    for i in range(window, len(points) + 1):
        if fmean(losses[i - window : i]) <= target:
            return points[i - 1][0][0] + 1, median(at for _, at, _ in points[i - 1])
    return None
