"""The perceptron in fp64 whose workers go on from the first instruction once two of them are there.

rank 0   ...F.B....     without that, a worker of so small a model may be through with its run before the next one has
rank 1   F....B....     started, and nobody reads an old version
"""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path
from typing import Any, Final

from partita.program.instruction import Compute
from partita.runtime.acts import ACTS
from partita.runtime.rank import Rank
from partita.task import Task
from tests.processes.doubled import doubled

ENOUGH: Final = 2
PLACE: Final = (
    "BEGUN"  # the environment variable with a folder in which each worker of each run of each group leaves a file
)
PATIENCE: Final = 60.0


class Together:
    """Computes, in a run's first instruction only once ENOUGH ranks are there; lives as long as its process."""

    def __init__(self, place: Path) -> None:
        self.place, self.runs = place, 0
        self.last: Rank | None = None

    def __call__(self, do: Any, rank: Rank, act: Compute, name: str, round: int) -> Any:
        if rank is not self.last:
            self.last, self.runs = rank, self.runs + 1
            run, end = f"{os.environ['MASTER_PORT']}-{self.runs}", time.monotonic() + PATIENCE
            (self.place / f"{run}-{rank.rank}").touch()
            while len([*self.place.glob(f"{run}-*")]) < ENOUGH:
                assert time.monotonic() < end, f"fewer than {ENOUGH} workers have begun run {run}"
                time.sleep(0.001)
        return do(rank, act, name, round)


def together() -> Task:
    """See `doubled`; workers, which have a rank, meet in the folder that PLACE names."""
    if "RANK" in os.environ:
        ACTS[Compute] = partial(Together(Path(os.environ[PLACE])), ACTS[Compute])
    return doubled()
