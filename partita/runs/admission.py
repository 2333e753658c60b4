"""How all ranks agree, through the store, on the round at which a worker that was started again enters a running run.

rank 2, back       returns/2 = 1          ............ reads both answers: it enters at round 9
rank 3, a server            sees it: 0:8               reads both answers: rank 2 enters at round 9
rank 4, a server            sees it: 0:9               the same

returns          how often any rank has come back, at which all look now and then
returns/2        how often rank 2 has; absent/2: which ranks were away then, and are not asked
clock/2/1/3      what rank 3 answers to its first return: leg:round, or that it is too late
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, Final

from partita.runs.presence import has_left
from partita.units import Seconds

POLL_INTERVAL: Final[Seconds] = 0.02
REJOIN_TIMEOUT: Final[Seconds] = 20.0  # with a rank that may have gone again
LATE: Final = "late"


@dataclass(frozen=True, slots=True)
class Admission:
    """The leg of a run, and the round of it, at which a rank enters."""

    leg: int
    round: int


@dataclass(frozen=True, slots=True)
class Return:
    """A rank is back, for so many `times`."""

    rank: int
    times: int


def come_back(store: Any, rank: int, away: Collection[int]) -> Return:
    """Tell all others that a rank is back, while those in `away` are not there."""
    store.set(f"absent/{rank}", " ".join(map(str, sorted(away))))
    times = store.add(f"returns/{rank}", 1)
    store.add("returns", 1)
    return Return(rank, times)


def absent(store: Any, back: Return) -> frozenset[int]:
    """The ranks that were away, as far as it knew, when one came back: it neither asks nor links them, and lets them in
    when they are back themselves."""
    return frozenset(int(rank) for rank in store.get(f"absent/{back.rank}").decode().split())


def returns(store: Any) -> int:
    """How often any rank has come back."""
    return int(store.add("returns", 0))


def last_return(store: Any, rank: int) -> Return:
    """A rank's last return."""
    return Return(rank, store.add(f"returns/{rank}", 0))


def answer(store: Any, back: Return, voter: int, entry: Admission | None) -> None:
    """Say from where on `voter` can go on with who is back; None: nowhere. The first answer stands."""
    store.compare_set(_clock(back, voter), "", f"{entry.leg}:{entry.round}" if entry else LATE)


def agreed(store: Any, back: Return, peers: Iterable[int]) -> Admission | None:
    """The admission that follows from the answers of all ranks in `peers` that are not away: the furthest of their
    rounds. None if some have ended."""
    away = absent(store, back)
    answers = [_answer(store, back, voter) for voter in peers if voter not in away]
    if None in answers or len({entry.leg for entry in answers if entry}) > 1:
        return None
    return max((entry for entry in answers if entry), key=lambda entry: entry.round)


def _answer(store: Any, back: Return, voter: int) -> Admission | None:
    """A rank's answer, for all who ask the same; None if it ended before it was asked, or is gone too."""
    end, key = time.monotonic() + REJOIN_TIMEOUT, _clock(back, voter)
    while not store.check([key]):
        if has_left(store, voter) or time.monotonic() > end:
            answer(store, back, voter, None)
        else:
            time.sleep(POLL_INTERVAL)
    leg, _, round = store.get(key).decode().partition(":")
    return None if leg == LATE else Admission(int(leg), int(round))


def _clock(back: Return, voter: int) -> str:
    return f"clock/{back.rank}/{back.times}/{voter}"
