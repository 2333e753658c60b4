"""How much has been done by any moment, as straight pieces between moments: seconds computed, core-seconds spent.

spans        |======|      |===|
done          ....---------....'----
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from partita.arrays import Reals


@dataclass(frozen=True, slots=True)
class Progress:
    """What is `done` by each of the rising `moments`, the first of which is 0; both of shape [moments]."""

    moments: Reals
    done: Reals

    def by(self, times: Reals) -> Reals:
        """What is done by each of the times."""
        return np.interp(times, self.moments, self.done)

    def when(self, done: Reals) -> Reals:
        """When so much is done."""
        return np.interp(done, self.done, self.moments)

    def during(self, start: Reals, end: Reals) -> Reals:
        """What is done while each span lasts."""
        return self.by(end) - self.by(start)


def slowed(*by: tuple[Progress, float]) -> Progress:
    """Of one who goes at the rate 1, and while each of these does at its rate less: seconds of its own."""
    moments = by[0][0].moments if len(by) == 1 else np.unique(np.concatenate([one.moments for one, _ in by]))
    return Progress(moments, moments - sum(less * one.by(moments) for one, less in by))


def covered(start: Reals, end: Reals) -> Progress:
    """The seconds in which one of these spans or more was running."""
    order = np.argsort(start, kind="stable")
    start, until = start[order], np.maximum.accumulate(end[order])
    first = np.append(True, start[1:] > until[:-1])[: len(start)]
    opens, closes = start[first], until[np.append(first[1:], True)[: len(start)]]
    moments = np.concatenate([[0.0], np.stack([opens, closes], axis=1).ravel(), [2 * until.max(initial=0.0) + 1e6]])
    inside = np.concatenate([[0.0], np.stack([np.zeros(len(opens)), closes - opens], axis=1).ravel(), [0.0]])
    return Progress(moments, np.cumsum(inside))


def poured(start: Reals, end: Reals, amounts: Reals) -> Progress:
    """What has been spent, where each span spends its amount evenly."""
    lasts = np.maximum(end - start, 1e-9)
    moments = np.concatenate([[0.0], start, start + lasts])
    change = np.concatenate([[0.0], amounts / lasts, -amounts / lasts])
    order = np.argsort(moments, kind="stable")
    moments, rate = moments[order], np.cumsum(change[order])
    return Progress(moments, np.concatenate([[0.0], np.cumsum(rate[:-1] * np.diff(moments))]))
