"""The ledger of an asynchronous run: every contribution to a bucket in order, with the version that it was computed
on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from partita.units import Seconds

LOST: Final = -1


@dataclass(frozen=True, slots=True)
class Merge:
    """A contribution of `worker` to a bucket on rank `at`.

    `turn` numbers the worker's contributions from 0; `read` is the version of the bucket that it was computed on,
    `applied` the version to which it was applied. A bucket's merges are in the order in which they were applied.
    `applied` is LOST if the worker died before; then `read` says what its other contributions of that turn were
    computed on.
    """

    bucket: str
    worker: int
    turn: int
    read: int
    applied: int
    at: int = -1

    @property
    def staleness(self) -> int:
        """Versions made between reading and applying."""
        return self.applied - self.read


def staleness_of(ledger: Iterable[Merge], *, skip: int = 4) -> dict[int, float]:
    """Staleness -> fraction of the merges, in the steady state: from the first worker's turn `skip` to the first
    worker's last turn."""
    counts = Counter(merge.staleness for merge in steady(ledger, skip))
    return {staleness: count / counts.total() for staleness, count in sorted(counts.items())}


def compared(one: Iterable[Merge], other: Iterable[Merge]) -> tuple[float, float, float] | None:
    """The mean staleness of two ledgers and how far apart their distributions are (total variation, 0 to 1); None where
    one has no steady state."""
    both = [staleness_of(ledger) for ledger in (one, other)]
    if not all(both):
        return None
    first, second = (sum(late * part for late, part in found.items()) for found in both)
    return first, second, sum(abs(both[0].get(late, 0.0) - both[1].get(late, 0.0)) for late in both[0] | both[1]) / 2


def steady(ledger: Iterable[Merge], skip: int) -> Iterator[Merge]:
    """The merges of each bucket after the first merge of a turn that is `skip` behind the ledger's first and before the
    first merge of a last turn, since unequal workers are alone at the start and at the end."""
    by_bucket: dict[tuple[int, str], list[Merge]] = {}
    for merge in ledger:
        if merge.applied != LOST:
            by_bucket.setdefault((merge.at, merge.bucket), []).append(merge)
    first = min((merge.turn for merges in by_bucket.values() for merge in merges), default=0)
    for merges in by_bucket.values():
        last = max(merge.turn for merge in merges)
        begun = False
        for merge in merges:
            if merge.turn == last:
                break
            if begun:
                yield merge
            begun = begun or merge.turn >= first + skip


def step_of(ends: Sequence[Sequence[Seconds]], shares: Sequence[float], skip: int) -> Seconds:
    """Seconds of a step if workers go at their own pace: the time from when the first worker has ended `skip` rounds to
    when the first worker has ended all, divided by the steps applied in that time.

    `ends` are the end times of each worker's rounds, `shares` the steps' worth of samples in a round of each. NaN if
    there are too few rounds.
    """
    if min(map(len, ends)) < 1 or max(map(len, ends)) <= skip:
        return float("nan")
    start, stop = min(e[skip - 1] for e in ends if len(e) >= skip), min(e[-1] for e in ends if len(e) > skip)
    if stop <= start:
        return float("nan")
    done = sum(share * (_rounds(e, stop) - _rounds(e, start)) for e, share in zip(ends, shares, strict=True))
    return (stop - start) / done


def _rounds(ends: Sequence[Seconds], at: Seconds) -> float:
    """Rounds done at the time `at`, counting the current one by its elapsed fraction."""
    if at <= ends[0]:
        return at / ends[0] if ends[0] > 0 else 1.0
    for n, (before, after) in enumerate(pairwise(ends), 1):
        if at <= after:
            return n + (at - before) / (after - before)
    return float(len(ends))
