"""An all-reduce from outside the package: all send to rank 0, which adds up and sends the sum to all.

PARTITA_PLUGINS=examples/own_collective.py partita verify digits-cnn --cluster local:4 --plan "ddp(collective=star)"
"""

from __future__ import annotations

from partita.wire.schedule import Hop, Schedule, schedule


def star(ranks: int) -> Schedule:
    """Two steps on the whole vector, its only part: what all have comes together, then the sum goes out."""
    up = [Hop(rank, 0, 0, 1, add=True) for rank in range(1, ranks)]
    down = [Hop(0, rank, 0, 1, add=False) for rank in range(1, ranks)]
    return schedule("star", ranks, 1, [up, down])


COLLECTIVES = {"star": star}
