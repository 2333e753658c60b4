"""bytes-gpt on four times the samples: messages, servers and updates are a smaller part of a step."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from partita.task import Task
from partita.zoo.tasks import built_in

TIMES: Final = 4


def larger() -> Task:
    task = built_in("bytes-gpt")
    assert task
    return replace(task, name="bytes-gpt-larger", batch_size=TIMES * task.batch_size)
