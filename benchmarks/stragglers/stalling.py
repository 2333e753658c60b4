"""bytes-gpt on ranks that stall: of all (rank, step), drawn by SEED, one in EVERY computes TIMES as long."""

from __future__ import annotations

import os
import random
import time
from typing import Final

from partita.program.instruction import Compute
from partita.runtime.acts import ACTS, compute
from partita.runtime.rank import Rank
from partita.task import Task
from partita.zoo.tasks import built_in

SEED: Final = 7
EVERY: Final = 10
TIMES: Final = 5


def stalls(rank: int, step: int) -> bool:
    """Whether a rank stalls in a step."""
    return random.Random(f"{SEED}/{rank}/{step}").randrange(EVERY) == 0


def slowly(rank: Rank, act: Compute, name: str, round: int) -> None:
    """The act, after which a rank that stalls does nothing for as long as makes it TIMES as slow."""
    begun = time.perf_counter()
    compute(rank, act, name, round)
    if stalls(rank.rank, rank.step(round, act.step)):
        time.sleep((TIMES - 1) * (time.perf_counter() - begun))


def stalling() -> Task:
    task = built_in("bytes-gpt")
    assert task
    if "RANK" in os.environ:
        ACTS[Compute] = slowly
    return task
