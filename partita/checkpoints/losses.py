"""The loss of each step, from the parts that the ranks have computed, and the file that keeps it.

DIR/losses.csv    step,seconds,loss
                  0,0.0625,2.3025     a checkpoint adds the steps since the one before, and its manifest says how many
                  1,0.125,2.25        bytes of the file are its own, with their SHA-256; what lies behind these is cut
                                      off when the next one is written
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from partita.checkpoints.entry import Entry
from partita.checkpoints.manifest import DamagedCheckpoint
from partita.checkpoints.restore import Checkpoint
from partita.checkpoints.shard import File
from partita.files import sync
from partita.runtime.rank import Rank
from partita.units import Bytes, Seconds

NAME: Final = "losses.csv"
HEADER: Final = "step,seconds,loss\n"
Row = tuple[int, float, float]
Losses = list[tuple[int, Seconds, float, float]]


def taken_rows(rank: Rank) -> list[Row]:
    """(step, this rank's part of the loss, the weight of that part) for each step since they were last taken. A part of
    a mean is already weighted by its share of the samples, and has weight 0."""
    losses, weights = rank.losses, rank.weights
    rows = [(at, float(losses.get(at, 0.0)), float(weights.get(at, 0.0))) for at in sorted(losses.keys() | weights)]
    losses.clear()
    weights.clear()
    return rows


def totals(rows: Iterable[Row]) -> dict[int, float]:
    """Step -> loss: the sum of its parts, divided by the sum of their weights if they have any."""
    sums: dict[int, tuple[float, float]] = {}
    for step, loss, weight in rows:
        before = sums.get(step, (0.0, 0.0))
        sums[step] = (before[0] + loss, before[1] + weight)
    return {step: loss / weight if weight else loss for step, (loss, weight) in sorted(sums.items())}


def summed(rows: Losses) -> Losses:
    """(step, seconds, loss, 0) of each step, from (step, seconds, part, weight) in the order of ranks; the seconds are
    the first rank's that has a part."""
    seconds = {step: second for step, second, _, _ in reversed(rows)}
    total = totals((step, loss, weight) for step, _, loss, weight in rows)
    return [(step, seconds[step], loss, 0.0) for step, loss in total.items()]


@dataclass(frozen=True)
class LossFile:
    """A run's file of losses: `size` bytes of it are those of the newest checkpoint; `digest` has hashed these."""

    path: Path
    size: Bytes = 0
    digest: Any = field(default_factory=hashlib.sha256)

    @property
    def named(self) -> File:
        """As a manifest names it."""
        return File(self.path.name, self.size, self.digest.hexdigest())


def begun_in(out: str | Path) -> LossFile:
    """The file of a run in `out` that has no checkpoint yet."""
    return LossFile(Path(out) / NAME)


def append(file: LossFile, rows: Losses) -> LossFile:
    """Write a line for each row behind what the newest checkpoint has, in place of whatever is there, to the disk.
    Raises OSError."""
    lines = "".join(f"{step},{second!r},{loss!r}\n" for step, second, loss, _ in rows)
    text = (lines if file.size else HEADER + lines).encode()
    handle = os.open(file.path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    with open(handle, "wb") as out:
        out.truncate(file.size)
        out.seek(file.size)
        out.write(text)
    sync(file.path)
    sync(file.path.parent)
    digest = file.digest.copy()
    digest.update(text)
    return LossFile(file.path, file.size + len(text), digest)


def losses_of(saved: Checkpoint) -> tuple[LossFile, Losses]:
    """The run's file as a checkpoint left it, and (step, seconds, loss, 0) of all steps before that, from the file, or
    from the shards of a checkpoint that names none. Raises DamagedCheckpoint where the file is not as it was."""
    path, named = saved.path.parent.parent / NAME, saved.manifest.losses
    if named is None:
        found = saved.contents
        shards = (found.tensor(Entry("losses", rank=rank)).tolist() for rank in found.ranks("losses"))
        return LossFile(path), summed([(int(step), *row) for rows in shards for step, *row in rows])
    if path.is_symlink() or not path.is_file():
        raise DamagedCheckpoint(f"{path} is missing")
    with path.open("rb") as file:
        text = file.read(min(named.size, path.stat().st_size))
    try:
        if (digest := hashlib.sha256(text)).hexdigest() != named.sha256:
            raise ValueError
        rows = [line.split(",") for line in text.decode().splitlines()[1:]]
        losses = [(int(step), float(second), float(loss), 0.0) for step, second, loss in rows]
    except ValueError:
        raise DamagedCheckpoint(f"{path} is not as {saved.path.name} left it") from None
    return LossFile(path, named.size, digest), losses
