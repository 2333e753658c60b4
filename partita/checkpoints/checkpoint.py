"""The checkpoints of a run: begun, committed, found and removed. Rank 0 does this; the other ranks write shards
only."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from partita.checkpoints.manifest import (
    NAME,
    DamagedCheckpoint,
    Manifest,
    check_files,
    read_manifest,
    with_files,
    write_manifest,
)
from partita.checkpoints.shard import File
from partita.errors import InputError, RunError
from partita.files import sync
from partita.telling import Tell
from partita.units import Bytes, show_bytes

PLACE: Final = "checkpoints"
STEP: Final = re.compile(r"step-(\d{1,12})")
SPARE: Final[Bytes] = 2**16


@dataclass(frozen=True, slots=True)
class SavedCheckpoint:
    """A complete checkpoint and its directory."""

    path: Path
    manifest: Manifest


@dataclass(frozen=True, slots=True)
class SavePolicy:
    """Where a run writes checkpoints (`out`), every how many steps (`every`, 0: none), and how many it keeps
    (`many`)."""

    out: str
    every: int = 0
    many: int = 2


def place_of(out: str | Path, step: int) -> Path:
    """The directory of the checkpoint after `step` steps."""
    return Path(out) / PLACE / f"step-{step}"


def going_on(out: str) -> str:
    """Where `--resume` goes on with a run that has ended: at its newest checkpoint; "" where it has none."""
    path = next(committed(out), None) if out else None
    return "" if path is None else f"its newest checkpoint is {path}; --resume goes on from there"


@contextmanager
def advising(out: str) -> Iterator[None]:
    """A context in which the error of a run that fails ends with where it goes on."""
    try:
        yield
    except RunError as error:
        error.advise(going_on(out))
        raise


def stopped_at(step: int, out: str) -> str:
    """The sentence about a run that a signal has ended."""
    return f"stopped after {step} steps; {going_on(out) or '--resume starts it anew'}"


def begin(out: str | Path, step: int, need: Bytes) -> Path:
    """An empty directory for the shards of a checkpoint of about `need` bytes.

    Raises OSError where it cannot be made or the disk has too little space; earlier checkpoints are left alone.
    """
    path = place_of(out, step)
    path.parent.mkdir(parents=True, exist_ok=True)
    require_space(path.parent, need)
    _remove(path)
    path.mkdir()
    sync(path.parent)
    return path


def require_space(directory: Path, need: Bytes) -> None:
    """Raises OSError where the disk of an existing directory cannot take `need` more bytes."""
    have = shutil.disk_usage(directory).free
    if have < need + SPARE:
        raise OSError(f"no space: need {show_bytes(need + SPARE)}, have {show_bytes(have)} in {directory}")


def commit(path: Path, manifest: Manifest, files: list[File], keep: int) -> None:
    """Commit a checkpoint, and remove all but the newest `keep`, as far as the system lets us. Raises OSError, and then
    the checkpoint does not count."""
    sync(path)
    write_manifest(path, with_files(manifest, files))
    for old in list(committed(path.parent.parent))[keep:]:
        with suppress(OSError):
            _remove(old)


def abandon(path: Path) -> None:
    """Remove the files of a checkpoint that failed."""
    shutil.rmtree(path, ignore_errors=True)


def committed(out: str | Path) -> Iterator[Path]:
    """The directories that have a manifest, newest first."""
    root = Path(out) / PLACE
    steps = [int(found[1]) for each in root.glob("step-*") if (found := STEP.fullmatch(each.name))]
    for step in sorted(steps, reverse=True):
        path = root / f"step-{step}"
        if (path / NAME).is_symlink() or (path / NAME).exists():
            yield path


def newest(out: str | Path, tell: Tell) -> SavedCheckpoint | None:
    """The newest checkpoint that is undamaged; None if there are no checkpoints. Tells of damaged ones.

    Raises InputError if all are damaged, or if a manifest is not one that this package writes.
    """
    damaged = ""
    for path in committed(out):
        try:
            manifest = read_manifest(path)
            check_files(path, manifest)
        except DamagedCheckpoint as found:
            damaged = str(found)
            tell(f"{damaged}; going back to the checkpoint before {path.name}")
            continue
        return SavedCheckpoint(path, manifest)
    if damaged:
        raise none_left(damaged, out)
    return None


def none_left(damaged: str, out: str | Path) -> InputError:
    """For a run all of whose checkpoints are damaged, the last one as said."""
    return InputError(f"{damaged}, and {out} has no other checkpoint; start anew with another --out")


def sweep(out: str | Path, step: int) -> None:
    """Before a run continues from `step`: remove checkpoints that were never committed, and set aside later ones, which
    are damaged."""
    later = {path for path in committed(out) if int(path.name.removeprefix("step-")) > step}
    whole = set(committed(out))
    for path in (Path(out) / PLACE).glob("step-*"):
        if path in later:
            aside = path.with_name(f"damaged-{path.name}")
            abandon(aside)
            path.rename(aside)
        elif path not in whole and STEP.fullmatch(path.name):
            abandon(path)


def _remove(path: Path) -> None:
    """The manifest first, so that what is left of a checkpoint never counts as one."""
    (path / NAME).unlink(missing_ok=True)
    if path.is_symlink():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)
