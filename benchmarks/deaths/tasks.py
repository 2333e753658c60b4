"""Built-in tasks, of whose ranks that of KILLED dies at its DIES-th sample, and again whenever it is started anew, if
it is not to be BACK."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

from partita.task import Task
from partita.zoo.tasks import built_in


class Deadly:
    """A data set during whose `left`-th sample the process dies."""

    def __init__(self, data: Any, left: int, died: Path) -> None:
        self.data, self.left, self.died = data, left, died

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        self.left -= 1
        if not self.left:
            self.died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return self.data[index]


def digits_cnn() -> Task:
    return mortal("digits-cnn")


def bytes_gpt() -> Task:
    return mortal("bytes-gpt")


def mortal(name: str) -> Task:
    task = built_in(name)
    assert task
    if os.environ.get("RANK") != os.environ.get("KILLED", ""):
        return task
    died = Path(os.environ["DIED"])
    if died.exists() and not os.environ.get("BACK"):
        os.kill(os.getpid(), signal.SIGKILL)
    return task if died.exists() else replace(task, data=Deadly(task.data, int(os.environ["DIES"]), died))
