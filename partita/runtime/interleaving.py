"""All ranks of a Program in one thread, with lanes advanced in an order drawn from a seed: tests that results do not
depend on timing."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Final

import torch

from partita.errors import RunHung
from partita.runtime.beside import LaneRun, taken_along
from partita.runtime.leg import Interval
from partita.runtime.rank import Rank
from partita.runtime.worker import Record, lanes
from partita.transport.transport import Pending
from partita.units import Seconds

POLL_INTERVAL: Final[Seconds] = 0.0005
InjectFaults = Callable[[dict[tuple[int, str], LaneRun]], None]


def advance(
    ranks: Sequence[Rank], interval: Interval, seed: int = 0, slow: dict[int, float] | None = None,
    patience: Seconds = 0.0, record: Record = lambda _: False, inject: InjectFaults = lambda runs: None,
    driven: bool = False,
) -> int:  # fmt: skip
    """Run the rounds of `interval`. Each turn advances a lane that can go on, drawn at random; lanes of rank r have the
    weight `slow[r]`. Before each turn, `inject` may remove lanes, or add some. `driven`: leading lanes take along those
    that they do when a worker drives them.

    Returns the number of turns. Raises what a lane raised, or RunHung if no lane can go on for `patience` seconds
    (lanes may wait for other processes).
    """
    draw, weights = random.Random(seed), slow or {}
    held = {rank.rank: lanes(rank, interval, record) for rank in ranks}
    for rank in ranks if driven else ():
        taken_along(rank, held[rank.rank])
    runs = {(rank, name): run for rank, each in held.items() for name, run in each.items()}
    waits: dict[LaneRun, Pending] = {}
    turns, moved = 0, time.monotonic()
    with torch.no_grad():
        while runs:
            inject(runs)
            ready = [place for place, run in runs.items() if run not in waits or waits[run].ready()]
            if not ready and time.monotonic() - moved < patience:
                time.sleep(POLL_INTERVAL)
                continue
            if not ready:
                _raise_failure(ranks)
                raise RunHung(
                    "no lane can go on; waiting are "
                    + "; ".join(f"rank {r} {lane}: {waits.get(run)}" for (r, lane), run in runs.items())
                )
            place = draw.choices(ready, [weights.get(rank, 1.0) for rank, _ in ready])[0]
            turns, moved = turns + 1, time.monotonic()
            try:
                waits[runs[place]] = next(runs[place])
            except StopIteration:
                del runs[place]
    _raise_failure(ranks)
    for rank in ranks:
        rank.clock.settle(rank.spans, rank.ends)
    return turns


def _raise_failure(ranks: Sequence[Rank]) -> None:
    for rank in ranks:
        if rank.board.failure is not None:
            raise rank.board.failure
