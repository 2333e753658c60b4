"""All ranks of a Program in one thread, in an order drawn from a seed: how exactness under any timing is tested."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Final

import torch

from partita.errors import RunHung
from partita.runtime.leg import Reach
from partita.runtime.rank import Rank
from partita.runtime.transport import Pending
from partita.runtime.worker import Record, lanes
from partita.units import Seconds

POLL: Final[Seconds] = 0.0005


def advance(
    ranks: Sequence[Rank], reach: Reach, seed: int = 0, slow: dict[int, float] | None = None, patience: Seconds = 0.0,
    record: Record = lambda _: False,
) -> int:  # fmt: skip
    """Run the rounds of `reach`; each turn a lane that could go on is drawn, those of rank r with weight `slow[r]`.

    Returns the number of turns. Raises what a lane raised, RunHung where no lane can go on for `patience` seconds
    (those that wait for other processes may).
    """
    draw, weights = random.Random(seed), slow or {}
    runs = {(rank.rank, name): run for rank in ranks for name, run in lanes(rank, reach, record).items()}
    waits: dict[tuple[int, str], Pending | None] = dict.fromkeys(runs)
    turns, moved = 0, time.monotonic()
    with torch.no_grad():
        while runs:
            ready = [place for place in runs if (wait := waits[place]) is None or wait.ready()]
            if not ready and time.monotonic() - moved < patience:
                time.sleep(POLL)
                continue
            if not ready:
                raise RunHung(
                    "no lane can go on; waiting are "
                    + "; ".join(f"rank {r} {lane}: {waits[r, lane]}" for r, lane in runs)
                )
            place = draw.choices(ready, [weights.get(rank, 1.0) for rank, _ in ready])[0]
            turns, moved = turns + 1, time.monotonic()
            try:
                waits[place] = next(runs[place])
            except StopIteration:
                del runs[place]
    for rank in ranks:
        if rank.board.failure is not None:
            raise rank.board.failure
    return turns
