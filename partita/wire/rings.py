"""Rings: every rank sends to the next one, a part at a time (Patarasuk & Yuan 2009; CO-02).

reduce-scatter of 4, owns=0          all-gather
step 0   0-3->1  1-0->2  2-1->3  3-2->0      0-0->1  1-1->2  2-2->3  3-3->0
     1   0-2->1  1-3->2  2-0->3  3-1->0      0-3->1  1-0->2  2-1->3  3-2->0
     2   0-1->1  1-2->2  2-3->3  3-0->0      0-2->1  1-3->2  2-0->3  3-1->0
then rank i has the sum of part i            everybody has every part

Each part is summed along one way round, so all ranks end with the same bits.
"""

from __future__ import annotations

from dataclasses import replace

from partita.wire.schedule import Hop, Schedule, joined, schedule


def ring_reduce_scatter(ranks: int, owns: int = 0) -> Schedule:
    """Rank i ends with the sum of part (i + owns) of `ranks`, the other parts hold partial sums. p-1 steps."""
    steps = [
        [Hop(i, (i + 1) % ranks, part := (i + owns - 1 - s) % ranks, part + 1, add=True) for i in range(ranks)]
        for s in range(ranks - 1)
    ]
    return schedule("ring reduce-scatter", ranks, ranks, steps)


def ring_all_gather(ranks: int, owns: int = 0) -> Schedule:
    """From part (i + owns) on rank i to every part on every rank. p-1 steps."""
    steps = [
        [Hop(i, (i + 1) % ranks, part := (i + owns - s) % ranks, part + 1, add=False) for i in range(ranks)]
        for s in range(ranks - 1)
    ]
    return schedule("ring all-gather", ranks, ranks, steps)


def ring(ranks: int) -> Schedule:
    """All-reduce: 2(p-1) steps, rank i sends 2n - size(c_{i+1}) - size(c_{i+2}), all together 2(p-1)n."""
    return joined("ring", ring_reduce_scatter(ranks, owns=1), ring_all_gather(ranks, owns=1))


def pairwise_reduce_scatter(ranks: int) -> Schedule:
    """Reduce-scatter in one step: every rank sends rank j its part j directly, p-1 messages at once."""
    return schedule("pairwise reduce-scatter", ranks, ranks, [_each(ranks, own=False)] if ranks > 1 else [])


def pairwise_all_gather(ranks: int) -> Schedule:
    """Every rank sends its own part to all others, in one step."""
    return schedule("pairwise all-gather", ranks, ranks, [_each(ranks, own=True)] if ranks > 1 else [])


def pairwise(ranks: int) -> Schedule:
    """All-reduce in two steps of p-1 messages each: each rank sums one part and sends it to all (1-bit SGD's
    stripes, Seide et al. 2014; SparCML's split and all-gather, Renggli et al. 2019)."""
    return joined("pairwise", pairwise_reduce_scatter(ranks), pairwise_all_gather(ranks))


def pairwise_scatter(ranks: int) -> Schedule:
    """Every rank sends rank j its part j, which keeps all of them: for messages that cannot be added on the way."""
    steps = [[replace(hop, add=False) for hop in _each(ranks, own=False)]] if ranks > 1 else []
    return schedule("pairwise scatter", ranks, ranks, steps)


def _each(ranks: int, *, own: bool) -> list[Hop]:
    """Rank i to i+1, i+2, ...: no two hops to the same rank at a time."""
    pairs = [(i, (i + d) % ranks) for d in range(1, ranks) for i in range(ranks)]
    return [Hop(i, j, i if own else j, (i if own else j) + 1, add=not own) for i, j in pairs]
