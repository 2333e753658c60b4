"""What all ranks' replies say together of messages and collectives: rows by size, medians over ranks.

replies    rank 0  {"all_reduce": [[4, wall, core, ahead], [1024, ...], ...], "hops": [...], "crowds": [...], ...}
           rank 1  {...}                                                        each what `rank_wires` returns
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf
from operator import itemgetter
from statistics import median
from typing import Any, Final, TypeVar

from partita.probes.crowd_timing import Congested
from partita.units import Bytes, Seconds

BUCKET: Final[Bytes] = 2**22
Row = TypeVar("Row", bound=tuple[Any, ...])


@dataclass(frozen=True, slots=True)
class Round:
    """A round of computing and a collective of `size` bytes: wall seconds, core-seconds of the collective on each rank,
    those of computing, 0 where it was timed alone. All of a ring's bytes go over the ports."""

    size: Bytes
    wall: Seconds
    core: Seconds
    ahead: Seconds


def rounds_of(replies: list[dict[str, Any]], name: str) -> list[Round]:
    """By size, medians over the ranks, of what was timed twice the quicker: a host's neighbours may work for some
    seconds. None takes longer than a larger one: if it seemed to, something else on the machine was in its way."""
    timed, found = dict[Bytes, tuple[Seconds, ...]](), list[Round]()
    for rows in zip(*(reply.get(name, []) for reply in replies), strict=True):
        size, *once = (median(row[k] for row in rows) for k in range(4))
        timed[int(size)] = min(tuple(once), timed.get(int(size), (inf,)))
    for size, (wall, core, ahead) in sorted(timed.items(), reverse=True):
        larger = found[-1] if found else Round(0, inf, inf, 0.0)
        wall, core = min(wall, larger.wall - larger.ahead + ahead), min(max(core - ahead, 0.0), larger.core)
        found.append(Round(size, wall, core, ahead))
    return found[::-1]


@dataclass(frozen=True, slots=True)
class Hop:
    """A message of `size` bytes in a chain: wall seconds, those in the quickest of the chains, and core-seconds of a
    rank, which sends one and receives one."""

    size: Bytes
    wall: Seconds
    quickest: Seconds
    core: Seconds


def hops_of(replies: list[dict[str, Any]], way: Seconds) -> list[Hop]:
    """By size, medians over the ranks, without the latency of the links on their way."""
    rows = zip(*(reply["hops"] for reply in replies), strict=True)
    return [
        Hop(int(each[0][0]), *(median(row[k] - (way if k < 3 else 0.0) for row in each) for k in (1, 2, 3)))
        for each in rows
    ]


def each_byte(end: list[tuple[Bytes, Seconds]]) -> float:
    """Core-seconds of each byte at one end of a message, from the largest of the size of a bucket: still larger ones
    wait for memory, and no program sends them at once."""
    (_, least), (size, core) = end[0], max(row for row in end if row[0] <= BUCKET or row is end[1])
    return max(core - least, 0.0) / size


def crowds_by_peers(spells: Sequence[Sequence[tuple[int, Sequence[Congested]]]]) -> dict[int, list[Congested]]:
    """By the number of peers, rows by size."""
    return {both[0][0]: quicker(rows for _, rows in both) for both in zip(*spells, strict=True)}


def middle_of(rows: Sequence[tuple[float, Bytes, Seconds]]) -> tuple[float, Bytes, Seconds]:
    """Medians of rows about messages of one size."""
    many, own = (median(row[k] for row in rows) for k in (0, 2))
    return many, rows[0][1], own


def quicker(spells: Iterable[Sequence[Row]]) -> list[Row]:
    """Each row, whose seconds are its last entry, of the spell in which it was timed the quickest: a host's neighbours
    may work for some seconds."""
    return [min(rows, key=itemgetter(-1)) for rows in zip(*spells, strict=True)]
