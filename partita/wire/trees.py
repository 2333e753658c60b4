"""Trees: partial sums are combined in pairs towards rank 0, and the result returns the same way (CO-03).

reduce of 6     1 -> 0   3 -> 2   5 -> 4
                2 -> 0            (4 waits)
                4 -> 0
broadcast       0 -> 4,  0 -> 2,  0 -> 1   2 -> 3   4 -> 5
"""

from __future__ import annotations

from partita.wire.schedule import Hop, Schedule, joined, schedule


def tree_reduce(ranks: int) -> Schedule:
    """The sum on rank 0, in ceil(log2 p) steps, p-1 messages."""
    steps, distance = [], 1
    while distance < ranks:
        senders = range(distance, ranks, 2 * distance)
        steps.append([Hop(i, i - distance, 0, 1, add=True) for i in senders])
        distance *= 2
    return schedule("tree reduce", ranks, 1, steps)


def tree_broadcast(ranks: int) -> Schedule:
    """Rank 0's vector on every rank: the messages of the reduction, reversed."""
    back = [
        [Hop(hop.target, hop.source, 0, 1, add=False) for hop in step] for step in reversed(tree_reduce(ranks).steps)
    ]
    return schedule("tree broadcast", ranks, 1, back)


def tree(ranks: int) -> Schedule:
    """All-reduce by a binomial tree: 2 ceil(log2 p) steps of the whole vector, p-1 messages each way. It is
    FireCaffe's reduction tree (Iandola et al., CVPR 2016)."""
    return joined("tree", tree_reduce(ranks), tree_broadcast(ranks))
