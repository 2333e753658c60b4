"""A small task on whose second rank a shard takes SECONDS to be written; workers load it as a file."""

from __future__ import annotations

import os
import time
from pathlib import Path

from partita.checkpoints import saving
from partita.checkpoints.shard import File, Shard, write_shard
from partita.task import Task
from tests.small import perceptron

SECONDS = 9.0


def write_slowly(shard: Shard, directory: Path, rank: int) -> File:
    """As `write_shard`, on a slow disk."""
    time.sleep(SECONDS)
    return write_shard(shard, directory, rank)


def slow_disk() -> Task:
    """A perceptron."""
    if os.environ.get("RANK") == "1":
        saving.write_shard = write_slowly
    return perceptron()
