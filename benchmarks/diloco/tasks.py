"""bytes-gpt with fewer samples a step than its own 32, and a third of the held-out samples."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from partita import Task, api
from partita.zoo.data import Samples

BATCHES = (4, 8, 16, 32)


def with_batch(size: int) -> Task:
    task = api.load("bytes-gpt")
    held_out = Samples(tuple(column[::3] for column in task.validation.columns))
    return replace(task, name=f"bytes-gpt-{size}", batch_size=size, validation=held_out)


globals().update({f"batch_{size}": partial(with_batch, size) for size in BATCHES})
