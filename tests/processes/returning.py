"""The perceptron in fp64 under plain SGD; ranks die as KILL says (see mortal.py), "1:act:57 2:act:60" two of them.

Where ONCE names a file it dies once, which the file then says; until it is back its peers' samples load slowly, so that
they are not done by then.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import torch

from partita.task import Task
from tests.processes.doubled import Doubled, doubled
from tests.processes.mortal import doom_acts

AWAY = 0.15  # seconds a sample


class Slowly(Doubled):
    def __init__(self, died: Path, came: bool) -> None:
        super().__init__()
        self.died, self.back, self.came = died, died.with_suffix(".back"), came

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if self.came:
            self.back.touch()
        elif self.died.exists() and not self.back.exists():
            time.sleep(AWAY)
        return self.x[index], self.y[index]


def returning() -> Task:
    kills = dict(kill.split(":act:") for kill in os.environ.get("KILL", "").split())
    count, died = kills.get(os.environ.get("RANK", ""), ""), Path(os.environ.get("ONCE", "/nowhere/died"))
    came = died.exists()
    if count and not came:
        if died.parent.exists():
            died.touch()
        doom_acts(int(count))
    data = Slowly(died, bool(count) and came)
    return replace(doubled(), data=data, optimizer=lambda p: torch.optim.SGD(p, lr=0.1))
