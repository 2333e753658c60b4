"""The directory of a run, DIR of `--out`: one run at a time, what it needs, where it goes on.

DIR/manifest.json       what the run is, written before it begins (`report/manifest.py`)
DIR/.lock               held by the launcher (rank 0 under torchrun) while it lives
DIR/checkpoints/        see manifest.py
DIR/losses.csv          the losses up to the newest checkpoint, see losses.py
DIR/model.safetensors   the weights at the end; DIR/best.safetensors those of the least held-out loss on the way
DIR/result.json         written last of all: the run is finished
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Final

import torch

from partita.checkpoints.checkpoint import (
    SavedCheckpoint,
    committed,
    newest,
    none_left,
    sweep,
)
from partita.checkpoints.manifest import (
    DamagedCheckpoint,
    Identity,
    Manifest,
    check_files,
    check_sizes,
    differences,
    foreseen,
    read_manifest,
)
from partita.checkpoints.typed import read_strictly
from partita.errors import InputError, OptionError, check_schema, first_line
from partita.files import atomically, read_json, read_whole
from partita.plan.plan import Plan
from partita.plan.text import read_plan, write_plan
from partita.program.held_out import is_over, taken
from partita.runs.result import RunResult
from partita.runs.room import require_room
from partita.runs.training import Training
from partita.task import Task

RESULT: Final = "result.json"
SCHEMA: Final = 1


@contextmanager
def claimed(out: str) -> Iterator[None]:
    """The directory `out` is made where it is not there, and is this run's alone. Raises OptionError."""
    path = Path(out)
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = os.open(path / ".lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise OptionError(f"--out {out} cannot be written ({error.strerror}); give another directory") from None
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(lock, 99, 0).decode(errors="replace").strip()
            raise OptionError(
                f"another run (process {holder}) writes to {out}; wait for its end or give another --out"
            ) from None
        except OSError as error:
            raise OptionError(
                f"--out {out} is on a file system where no file can be locked ({error.strerror}), so two runs might "
                "write there at once; give a directory on another one"
            ) from None
        with suppress(OSError):  # a full disk: who waits for the run does not learn its number
            os.ftruncate(lock, 0)
            os.pwrite(lock, f"{os.getpid()} on {os.uname().nodename}".encode(), 0)
        yield
    finally:
        os.close(lock)


@contextmanager
def opened(asked: Training) -> Iterator[SavedCheckpoint | Finished | None]:
    """The run's directory is claimed and has room; yields where the run starts (see `place_to_start`), and `begin` is
    called where it does: a run that is refused, or that is finished, leaves alone what is there."""
    keep = asked.keep
    if not keep.out:
        yield None
        return
    with claimed(keep.out):
        try:
            start = place_to_start(asked)
            if not isinstance(start, Finished):
                if keep.every:
                    require_room(keep, asked.graph, asked.program)
                asked.begin()
        except OSError as error:
            raise OptionError(
                f"--out {keep.out} cannot be written ({first_line(error)}); make room, or give another directory"
            ) from error
        yield start


@dataclass(frozen=True)
class Finished:
    """A run that came to its end; `identity` and `keyed` are None where they were not written down."""

    plan: Plan
    steps: int
    result: RunResult
    identity: Identity | None = None
    keyed: bool | None = None

    def goes_on(self, asked: Training) -> bool:
        """Whether it ended before all its steps, for want of patience, and somebody asks with more."""
        found = self.result.evaluations
        return taken(found, self.steps) < self.steps and not is_over(found, asked.evaluation.patience)


def finish(asked: Training, result: RunResult) -> None:
    """Write what a run that came to its end leaves in its directory: what `end` writes, and last of all that it is
    finished, also where the first found no room: nobody is to train once more for a report. Raises OptionError."""
    if asked.keep.out:
        try:
            asked.end(result)
        finally:
            write_result(asked.keep.out, Finished(asked.plan, asked.steps, result, asked.identity, asked.keyed))


def write_result(out: str, finished: Finished) -> None:
    """Say that the run is finished, whole or not at all; spans and merges, of which there are many, are left out.

    Raises OptionError where there is no room.
    """
    result = asdict(finished.result)
    result["timeline"] |= {"spans": [], "ledger": []}
    path = Path(out) / RESULT
    body = {"schema": SCHEMA, "plan": write_plan(finished.plan), "steps": finished.steps, "take": result}
    if finished.identity is not None:
        body |= {"identity": asdict(finished.identity), "keyed": finished.keyed}
    try:
        with atomically(path, durable=True) as fresh:
            fresh.write_text(json.dumps(body))
    except OSError as error:
        raise OptionError(
            f"{path} cannot be written ({error.strerror}); the run is finished, and its weights are in {out}: make "
            "room, and --resume writes it"
        ) from None


def read_result(out: str) -> Finished | None:
    """The result of the run in `out`, None where it is not finished. Raises InputError for a file that is no result, or
    of another schema: a finished run is not to be taken for one that never began."""
    path = Path(out) / RESULT
    try:
        body = read_json(read_whole(path), finite=False)  # a loss may be none
        check_schema(body["schema"], SCHEMA, str(path), "give another --out, or remove it")
        result = read_strictly(RunResult, body["take"])
        # where files are now, if the directory was moved
        weights, best = (str(Path(out, Path(path).name)) if path else "" for path in (result.weights, result.best))
        identity = read_strictly(Identity, body["identity"]) if "identity" in body else None
        if not (type(body["plan"]) is str and type(body["steps"]) is int and body.get("keyed") in (None, True, False)):
            raise TypeError("the plan is to be a text, the steps a number, keyed true or false")
        result = replace(result, timeline=replace(result.timeline, spans=()), weights=weights, best=best)
        return Finished(read_plan(body["plan"]), body["steps"], result, identity, body.get("keyed"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path} is not what a finished run wrote ({first_line(error)}); remove it to start anew, or give another "
            "--out"
        ) from error


def check_unused(out: str) -> None:
    """Raises OptionError for a directory that holds a run which is not to be gone on with."""
    if any(committed(out)):
        raise OptionError(f"{out} holds checkpoints of a run; give --resume to go on with it, or another --out")
    if (Path(out) / RESULT).exists():
        raise OptionError(f"{out} holds a finished run; give another --out, or remove it")


def refuse_early(out: str, task: Task, *, resume: bool, steps: int, seed: int, keyed: bool) -> None:
    """Raises InputError for a run that `place_to_start` will refuse, as far as the manifests in `out` and the task tell
    without the captured step, which takes up to minutes."""
    if not Path(out).is_dir() or not any(Path(out).iterdir()):
        return
    with claimed(out):
        if not resume:
            check_unused(out)
        found, damaged = list[SavedCheckpoint](), ""
        for path in committed(out) if resume else ():
            try:
                check_sizes(path, manifest := read_manifest(path))
                found.append(SavedCheckpoint(path, manifest))
            except DamagedCheckpoint as why:  # of which the run itself tells, and goes on from an older one
                damaged = str(why)
        if damaged and not found:
            raise none_left(damaged, out)
        for each in found[:1]:
            theirs = each.manifest.identity
            for difference in (*differences(foreseen(task, seed, theirs), theirs), *_draws(keyed, each.manifest)):
                raise _other(each, difference)
        done = found and (finished := read_result(out)) is not None and finished.steps == steps
        for each in takewhile(lambda one: not done and one.manifest.step > steps, found):
            with suppress(DamagedCheckpoint):  # only a whole one counts
                check_files(each.path, each.manifest)
                _check_steps(each, steps)


def _other(found: SavedCheckpoint, difference: str) -> OptionError:
    return OptionError(f"the checkpoint {found.path} {difference}; give another --out or start it as before")


def _check_steps(found: SavedCheckpoint, steps: int) -> None:
    if found.manifest.step > steps:
        raise OptionError(
            f"the run in {found.path.parent.parent} is at step {found.manifest.step} already, and --steps is {steps}; "
            "give more steps or another --out"
        )


def place_to_start(asked: Training) -> SavedCheckpoint | Finished | None:
    """Where a run with a directory starts: from a checkpoint, not at all since it is finished, or (None) from step 0.

    Raises InputError where the directory holds another run, or one that should not be overwritten.
    """
    out, steps, tell = asked.keep.out, asked.steps, asked.note
    if not asked.resume:
        check_unused(out)
        sweep(out, 0)
        return None
    finished, found = read_result(out), newest(out, tell)
    if found is not None:
        for difference in (*differences(asked.identity, found.manifest.identity), *_draws(asked.keyed, found.manifest)):
            raise _other(found, difference)
    more = finished is not None and found is not None and finished.goes_on(asked)
    if finished is not None and finished.steps == steps and not more:
        for why in (*differences(asked.identity, finished.identity or asked.identity), *_draws(asked.keyed, finished)):
            raise OptionError(f"the finished run in {out} {why}; give another --out")
        other = "" if finished.plan == asked.plan else f", by {finished.plan.name}"
        tell(f"the run in {out} is finished{other}{'; --init is not used' if asked.init else ''}")
        return finished
    if found is None and finished is not None:
        raise OptionError(
            f"the run in {out} is finished after {finished.steps} steps and has no checkpoint to go on from; ask "
            f"for {finished.steps} steps to see its result, or give another --out"
        )
    if found is None:
        tell(f"no checkpoint in {out}: starting at step 0")
        sweep(out, 0)
        return None
    _check_steps(found, steps)
    if asked.init:
        tell("--init is not used: the run goes on from its own weights")
    _say_where(found, asked)
    sweep(out, found.manifest.step)
    return found


def _draws(keyed: bool, theirs: Manifest | Finished) -> Iterator[str]:
    """How the random numbers of a run came otherwise than those that are asked for."""
    if theirs.keyed not in (None, keyed):
        yield f"is of a run {'with' if theirs.keyed else 'without'} --deterministic"


def _say_where(found: SavedCheckpoint, asked: Training) -> None:
    manifest, plan, tell = found.manifest, asked.plan, asked.note
    tell(f"going on from step {manifest.step} of {found.path}")
    if (before := read_plan(manifest.plan)) != plan:
        tell(f"the checkpoint was written under {before.name} on {manifest.world} ranks; going on under {plan.name}")
    if manifest.torch != torch.__version__:
        tell(f"the checkpoint was written by torch {manifest.torch}, and this is {torch.__version__}; bits may differ")
    if manifest.identity.signature != asked.identity.signature:
        tell("the captured step has changed since the checkpoint (the task's code, or torch); going on with it")
