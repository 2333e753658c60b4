"""Who updated what, in which order, having read which version: what an asynchronous run was, as data."""

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
    """A contribution of `worker`, number `turn` of its own (from 0), computed on version `read` of the bucket, which
    entered it on rank `at` when its version was `applied`. A bucket's merges stand in the order in which they entered.
    One that never did, since its worker died, was `applied` at LOST: it says what the others of the turn had read.
    """

    bucket: str
    worker: int
    turn: int
    read: int
    applied: int
    at: int = -1

    @property
    def staleness(self) -> int:
        """Versions that came between reading and applying."""
        return self.applied - self.read


def staleness_of(ledger: Iterable[Merge], *, skip: int = 4) -> dict[int, float]:
    """Staleness -> share of the merges in the steady state: from the first worker's turn `skip` to its last."""
    counts = Counter(merge.staleness for merge in steady(ledger, skip))
    return {staleness: count / counts.total() for staleness, count in sorted(counts.items())}


def steady(ledger: Iterable[Merge], skip: int) -> Iterator[Merge]:
    """Of each bucket the merges after the first one of a turn `skip`, and before the first one of a last turn: with
    unequal workers some would be alone in the end."""
    by_bucket: dict[tuple[int, str], list[Merge]] = {}
    for merge in ledger:
        if merge.applied != LOST:
            by_bucket.setdefault((merge.at, merge.bucket), []).append(merge)
    for merges in by_bucket.values():
        last = max(merge.turn for merge in merges)
        begun = False
        for merge in merges:
            if merge.turn == last:
                break
            if begun:
                yield merge
            begun = begun or merge.turn >= skip


def step_of(ends: Sequence[Sequence[Seconds]], shares: Sequence[float], skip: int) -> Seconds:
    """Seconds of a step where workers go at their own pace: samples count when they are applied, from the moment at
    which the first worker has ended `skip` rounds to that at which the first has ended all.

    `ends` are each worker's rounds, `shares` the steps that a round of it makes. Not a number for fewer rounds.
    """
    if min(map(len, ends)) < 1 or max(map(len, ends)) <= skip:
        return float("nan")
    start, stop = min(e[skip - 1] for e in ends if len(e) >= skip), min(e[-1] for e in ends if len(e) > skip)
    if stop <= start:
        return float("nan")
    done = sum(share * (_rounds(e, stop) - _rounds(e, start)) for e, share in zip(ends, shares, strict=True))
    return (stop - start) / done


def _rounds(ends: Sequence[Seconds], at: Seconds) -> float:
    """How many rounds are done at a moment, with the part of the one that runs."""
    if at <= ends[0]:
        return at / ends[0] if ends[0] > 0 else 1.0
    for n, (before, after) in enumerate(pairwise(ends), 1):
        if at <= after:
            return n + (at - before) / (after - before)
    return float(len(ends))
