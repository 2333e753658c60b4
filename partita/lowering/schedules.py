"""The orders of a pipeline's passes: who runs which F, B and W after which. Order only; time is the simulator's.

A row is what one rank does with `m` microbatches. F is forward of a microbatch through one of the rank's `chunks`,
B backward, W what of backward only the rank's own gradients need (where it is not part of B).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final

from partita.plan.schedule import Order


@dataclass(frozen=True, slots=True)
class Pass:
    """`kind` F, B or W of `microbatch` through the rank's stage number `chunk`."""

    kind: str
    chunk: int
    microbatch: int

    def __str__(self) -> str:
        return f"{self.kind}{self.microbatch}" + (f".{self.chunk}" if self.chunk else "")


Row = tuple[Pass, ...]


def fill_drain(ranks: int, rank: int, m: int, chunks: int) -> Row:
    """All forwards, then all backwards, last first (PP-01; Huang et al., NeurIPS 2019). Bubble (p-1)/(m+p-1).

    rank 0   F0 F1 F2 .. .. .. .. B2 B1 B0
    rank 1   .. F0 F1 F2 .. .. B2 B1 B0
    rank 2   .. .. F0 F1 F2 B2 B1 B0
    """
    return (*(Pass("F", 0, i) for i in range(m)), *(Pass("B", 0, i) for i in reversed(range(m))))


def one_f_one_b(ranks: int, rank: int, m: int, chunks: int) -> Row:
    """After p-1-rank forwards one forward, one backward in turn, so that rank r holds at most p-r microbatches (PP-11;
    Narayanan et al., SC 2021: PipeDream-Flush). Bubble (p-1)/(m+p-1).

    rank 0   F0 F1 F2 .. .. B0 F3 B1 .. B2 .. B3        (a backward drawn as long as a forward)
    rank 1   .. F0 F1 .. B0 F2 B1 F3 B2 .. B3
    rank 2   .. .. F0 B0 F1 B1 F2 B2 F3 B3
    """
    ahead = min(ranks - 1 - rank, m)
    return _alternating([Pass("F", 0, i) for i in range(m)], [Pass("B", 0, i) for i in range(m)], ahead)


def interleaved(ranks: int, rank: int, m: int, chunks: int) -> Row:
    """1F1B over v stages a rank: stage c*p + r is chunk c of rank r (Narayanan et al., SC 2021). Microbatches go in
    groups of about p through chunk after chunk; with m a multiple of p the bubble is (p-1)/(v*m+p-1).

    rank 0   F0 F1 F0' F1' .. F2 B0' F3 B1' F2' B0 F3' B1 ...      p = 2, v = 2, ' the second chunk
    rank 1   .. F0 F1 F0' B0' F1' B1' F2 B0 F3 B1 F2' B2' ...
    """
    groups = _groups(ranks, m)
    forward = [Pass("F", c, i) for group in groups for c in range(chunks) for i in group]
    backward = [Pass("B", c, i) for group in groups for c in reversed(range(chunks)) for i in group]
    return _alternating(forward, backward, min(_ahead(groups, ranks, rank, chunks), len(forward)))


def zero_bubble(ranks: int, rank: int, m: int, chunks: int) -> Row:
    """ZB-H1: 1F1B whose W wait, `rank` of them at most, and fill what is idle at the end (EX-07; Qi et al., ICLR 2024).
    As many activations as 1F1B on rank 0. Bubble (p-1)(F+B-W) seconds.

    rank 0   F0 F1 F2 .. .. B0 W0 F3 B1 W1 .. B2 W2 .. B3 W3
    rank 1   .. F0 F1 .. B0 F2 B1 W0 F3 B2 W1 .. B3 W2 W3
    rank 2   .. .. F0 B0 F1 B1 F2 B2 W0 F3 B3 W1 W2 W3
    """
    found: list[Pass] = []
    ended = 0
    for one in one_f_one_b(ranks, rank, m, chunks):
        found.append(one)
        if one.kind == "B" and one.microbatch >= rank:
            found.append(Pass("W", 0, ended))
            ended += 1
    return (*found, *(Pass("W", 0, i) for i in range(ended, m)))


def under_way(order: Order, ranks: int, rank: int, m: int, chunks: int) -> tuple[int, ...]:
    """How many microbatches have gone forward through each chunk when a rank's first backward pass begins."""
    if order is not Order.INTERLEAVED:
        return (m if order is Order.FILL_DRAIN else min(ranks - rank, m),)
    groups, found = _groups(ranks, m), [0] * chunks
    left = min(_ahead(groups, ranks, rank, chunks) + 1, m * chunks)
    for group, chunk in product(groups, range(chunks)):
        found[chunk] += min(left, len(group))
        left -= min(left, len(group))
        if not left:
            break
    return tuple(found)


def put_off(order: Order, ranks: int, rank: int, m: int) -> int:
    """Of how many microbatches W waits at most on a rank that has as many `under_way` as it ever has."""
    return min(rank, m - min(ranks - rank, m)) if order is Order.ZERO_BUBBLE else 0


def _groups(ranks: int, m: int) -> list[range]:
    """The microbatches that are interleaved, in groups as small as can be, of `ranks` or more each if there are."""
    rounds = max(1, m // ranks)
    return [range(m * g // rounds, m * (g + 1) // rounds) for g in range(rounds)]


def _ahead(groups: Sequence[range], ranks: int, rank: int, chunks: int) -> int:
    """The forwards that a rank whose passes are interleaved is ahead of its backwards."""
    return (chunks - 1) * max(map(len, groups)) + 2 * (ranks - 1 - rank)


def _alternating(forward: list[Pass], backward: list[Pass], ahead: int) -> Row:
    """`ahead` forwards, then one forward and one backward in turn, then the backwards that are left."""
    turns = [one for pair in zip(forward[ahead:], backward, strict=False) for one in pair]
    return (*forward[:ahead], *turns, *backward[len(forward) - ahead :])


ROWS: Final[dict[Order, Callable[[int, int, int, int], Row]]] = {
    Order.FILL_DRAIN: fill_drain,
    Order.ONE_F_ONE_B: one_f_one_b,
    Order.INTERLEAVED: interleaved,
    Order.ZERO_BUBBLE: zero_bubble,
}
