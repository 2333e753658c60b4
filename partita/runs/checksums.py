"""Checksums of weights that each rank reports while it runs, so that diverging replicas are found without a checkpoint
and without waiting.

rank 0   round 255  b0 5f3a     round 511  b0 77c0      after rounds whose number is a multiple of a power of two, so
rank 1   round 255  b0 5f3a     round 511  b0 0e19      that ranks of different pace report the same rounds
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import ceil, log2
from typing import Any, Final

from partita.program.instruction import Apply, Collective, Mix, Receive, Scale, Update
from partita.program.space import Space
from partita.runs.divergence import digests
from partita.runtime.rank import Rank
from partita.units import Seconds

COMPARISON_INTERVAL: Final[Seconds] = 15.0
COMPARISON_SHARE: Final = 0.003  # of the time at most
FIRST: Final = 8  # rounds


@dataclass
class ChecksumReporter:
    """Called at each end of a round of a rank's leading lane; reports `{"weights": {bucket: checksum}, "after": step}`
    about every COMPARISON_INTERVAL, more rarely where that would take more than COMPARISON_SHARE of the time."""

    rank: Rank
    report: Callable[[dict[str, Any]], None]
    every: int = FIRST
    begun: Seconds = 0.0
    since: int = 0

    def __call__(self, round: int) -> None:
        if (round + 1) % self.every or not self.steady or self.rank.spare:
            return
        before = time.perf_counter()
        self.report({"weights": digests(self.rank, self.steady), "after": self.rank.step(round + 1, 0)})
        now = time.perf_counter()
        if self.begun:
            each = max((now - self.begun) / (round + 1 - self.since), 1e-6)
            self.every = 2 ** ceil(log2(max(COMPARISON_INTERVAL, (now - before) / COMPARISON_SHARE) / each + 1))
        self.begun, self.since = now, round + 1

    @cached_property
    def steady(self) -> frozenset[str]:
        """The buckets whose weights only the leading lane changes: at the end of its round they are complete."""
        role, leading = self.rank.role, self.rank.role.leading
        found = {bucket.name for bucket in self.rank.program.trained if bucket.keeps(Space.PARAMETER)}
        for i in role.instructions:
            if i.lane != leading:
                found.discard(_changes(i.act))
        return frozenset(found)


def _changes(act: Any) -> str:
    """The bucket whose weights an act changes, if it does."""
    if isinstance(act, Update | Apply):
        return act.bucket
    space = act.into if isinstance(act, Mix) else act.space if isinstance(act, Collective | Receive | Scale) else None
    return act.bucket if space is Space.PARAMETER else ""
