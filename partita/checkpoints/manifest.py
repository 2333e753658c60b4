"""The manifest of a checkpoint: it says which run it is of and that it is complete. It is written last; its rename
commits.

DIR/checkpoints/step-40/rank-0.safetensors
                        rank-1.safetensors
                        manifest.json         sizes and SHA-256 of these, a digest of itself
DIR/losses.csv                                of which each checkpoint names a part, from the beginning on (`losses`)
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch

from partita.checkpoints.settings import settings_of
from partita.checkpoints.shard import File, sha256_of
from partita.checkpoints.typed import read_strictly
from partita.errors import InputError, check_schema
from partita.files import atomically, read_json, sync
from partita.graph.graph import Buffer, Graph, Parameter
from partita.plan.plan import Plan
from partita.plan.plan import Update as Rules
from partita.plan.rule import ruled
from partita.plan.text import write_plan
from partita.program.held_out import HeldOut
from partita.program.instruction import Mix, Update
from partita.program.program import Program
from partita.runtime.workload import Workload
from partita.task import Task
from partita.tracing.prepare import checked_model
from partita.units import Seconds

NAME: Final = "manifest.json"
FORMAT: Final = "partita checkpoint"
SCHEMA: Final = 4
BEFORE: Final = (2, 3)  # 3: without evaluations; 2: without the file of losses as well, or, for a while, with it
SHARD: Final = re.compile(r"rank-\d{1,6}\.safetensors")


class DamagedCheckpoint(Exception):
    """A checkpoint that is not as it was written; the text names the file."""


@dataclass(frozen=True)
class Identity:
    """What a run must share with a checkpoint to go on from it. `layout` is name -> dtype and shape of each parameter
    and buffer, `signature` a digest of the captured step."""

    layout: dict[str, str]
    optimizer: str
    signature: str
    seed: int
    batch: int
    samples: int


@dataclass(frozen=True)
class Manifest:
    """A checkpoint after `step` steps of a run under `plan` (TOML) on `world` ranks.

    The last `flying` gradients of a program that goes on for `lag` rounds after the last one are not applied yet, or
    changes of weights: `flies` says what, "" that it is not known; `seconds` is how long the run took so far.
    `settings` are those that the optimizer began with, as `settings.settings_of` writes them; `losses` is the part of
    the run's file of losses that is the checkpoint's, None if its shards have them; `evaluations` are the held-out
    losses that the run has found so far.
    """

    step: int
    plan: str
    world: int
    lag: int
    flying: int
    seconds: Seconds
    keyed: bool
    identity: Identity
    torch: str = torch.__version__
    files: tuple[File, ...] = ()
    flies: str = ""
    settings: Any = ()
    losses: File | None = None
    evaluations: HeldOut = ()


def identity_of(graph: Graph, seed: int, update: Rules) -> Identity:
    """The identity of a run: its captured step, with the optimizer of the plan's rule, and its seed."""
    leaves: list[Parameter | Buffer] = [*graph.parameters, *graph.buffers]
    layout = {leaf.name: f"{leaf.tensor.dtype}{list(leaf.tensor.shape_at())}" for leaf in leaves}
    words = [repr((o.name, o.target, o.arguments, o.keywords)) for o in graph.operators]
    signature = hashlib.sha256("\n".join(words).encode()).hexdigest()
    return Identity(
        layout, ruled(graph, update).optimizer.name, signature, seed, graph.minibatch, graph.samples
    )  # fmt: skip


def foreseen(task: Task, seed: int, theirs: Identity) -> Identity:
    """The identity of a run of the task, before its step is captured: of `theirs` what that alone would tell."""
    with torch.random.fork_rng(devices=[]):
        model = checked_model(task)
    named = (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))
    shapes = {name: str(list(tensor.shape)) for name, tensor in named}
    layout = {name: f"{text.partition('[')[0]}{shapes[name]}" for name, text in theirs.layout.items() if name in shapes}
    return replace(theirs, seed=seed, batch=task.batch_size, samples=len(task.data), layout=layout)


@dataclass(frozen=True, slots=True)
class Moment:
    """When a checkpoint is made: after `step` steps, which took `seconds`, while what the last `flying` rounds made is
    not applied yet, and `evaluations` have been made."""

    step: int
    flying: int
    seconds: Seconds = 0.0
    evaluations: HeldOut = ()


def manifest_of(work: Workload, plan: Plan, program: Program, moment: Moment) -> Manifest:
    """The manifest of a checkpoint of a plan while this Program of it runs; its files are named later."""
    return Manifest(
        moment.step, write_plan(plan), program.size, program.drain, moment.flying, moment.seconds, work.keyed,
        identity_of(work.graph, work.seed, plan.update), flies=flies_of(program),
        settings=settings_of(work.task, work.graph, program.update), evaluations=moment.evaluations,
    )  # fmt: skip


def flies_of(program: Program) -> str:
    """What is in flight at the end of a round: gradients, or changes of what a Mix of a later round makes."""
    found = {"gradient" for act in program.acts(Update) if act.lag}
    return " ".join(sorted(found | {str(act.into) for act in program.acts(Mix) if act.lag}))


def render(manifest: Manifest) -> bytes:
    """The bytes of the manifest's file, with a digest of all the rest."""
    body = {"format": FORMAT, "schema": SCHEMA, **asdict(manifest)}
    digest = hashlib.sha256(_text(body)).hexdigest()
    return _text({**body, "digest": digest})


def _text(body: dict[str, Any]) -> bytes:
    return json.dumps(body, sort_keys=True, indent=1).encode() + b"\n"


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Commit the checkpoint in `directory`. Raises OSError."""
    with atomically(directory / NAME, durable=True) as fresh:
        fresh.write_bytes(render(manifest))
    sync(directory.parent)


def read_manifest(directory: Path) -> Manifest:
    """The manifest of a checkpoint. Raises DamagedCheckpoint if it is no file or its digest does not match, InputError
    if it is no manifest of ours."""
    path = directory / NAME
    _plain_file(path)
    if not path.is_file():  # a pipe would be waited for
        raise DamagedCheckpoint(f"{path} is no file")
    try:
        raw = path.read_bytes()
        body = read_json(raw, wide=True)
        digest = body.pop("digest")
        if _text({**body, "digest": digest}) != raw or hashlib.sha256(_text(body)).hexdigest() != digest:
            raise ValueError
    except OSError as error:
        raise unreadable(path, error) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedCheckpoint(f"{path} is not what was written") from error
    return _manifest(path, body)


def _manifest(path: Path, body: dict[str, Any]) -> Manifest:
    if body.pop("format", None) != FORMAT or type(schema := body.pop("schema", None)) is not int:
        raise InputError(f"{path} is no manifest of a checkpoint; take another --out")
    remedy = "finish that run with the version that began it, or give another --out"
    if schema not in BEFORE:
        check_schema(schema, SCHEMA, str(path), remedy)
    try:
        found = read_strictly(Manifest, body)
        if min(found.step, found.lag, found.flying, found.world - 1, *(file.size for file in _files(found))) < 0:
            raise ValueError("a number is below what it can be")
    except ValueError as error:
        raise InputError(f"{path} is no manifest of schema {schema} ({error}); remove that checkpoint") from None
    for file in found.files:
        if not SHARD.fullmatch(file.name):
            raise InputError(
                f"{path} names the file {file.name!r}; a checkpoint holds rank-<number>.safetensors in its own "
                "directory and nothing else, so this one is refused; remove it"
            )
    return found


def _files(manifest: Manifest) -> Iterator[File]:
    yield from manifest.files
    if manifest.losses is not None:
        yield manifest.losses


def unreadable(path: Path, error: OSError) -> InputError:
    """For a file that the system does not let us read: it may be whole, and is not to be taken for damaged."""
    return InputError(f"{path} cannot be read ({error.strerror}); make it readable, or give another --out")


def check_sizes(directory: Path, manifest: Manifest) -> None:
    """Raises DamagedCheckpoint naming the first file that is missing or cut; InputError for a symlink."""
    for file in manifest.files:
        path = directory / file.name
        _plain_file(path)
        if not path.is_file():
            raise DamagedCheckpoint(f"{path} is missing")
        if (size := path.stat().st_size) != file.size:
            raise DamagedCheckpoint(f"{path} holds {size} bytes and was written with {file.size}")


def check_files(directory: Path, manifest: Manifest) -> None:
    """As `check_sizes`; raises DamagedCheckpoint also for the first file that is changed."""
    check_sizes(directory, manifest)
    for file in manifest.files:
        path = directory / file.name
        try:
            digest = sha256_of(path)
        except OSError as error:
            raise unreadable(path, error) from error
        if digest != file.sha256:
            raise DamagedCheckpoint(f"{path} has another SHA-256 than when it was written")


def _plain_file(path: Path) -> None:
    for each in (path.parent.parent, path.parent, path):
        if each.is_symlink():
            raise InputError(f"{each} is a symbolic link; checkpoints are read from the run's own directory only")


def differences(ours: Identity, theirs: Identity) -> list[str]:
    """What keeps a run from continuing from a checkpoint, the most telling difference first; up to five of a model's
    tensors."""
    keys = [key for key in sorted(ours.layout | theirs.layout) if ours.layout.get(key) != theirs.layout.get(key)]
    if keys:
        each = [f"{k} ({theirs.layout.get(k, 'none')} there, {ours.layout.get(k, 'none')} here)" for k in keys[:5]]
        return [f"is of another model: {len(keys)} keys differ, such as {', '.join(each)}"]
    return [
        f"was written with {what} {getattr(theirs, name)}, and this run has {getattr(ours, name)}"
        for name, what in (
            ("seed", "--seed"), ("batch", "a minibatch of"), ("samples", "data of length"), ("optimizer", "optimizer"),
        )
        if getattr(ours, name) != getattr(theirs, name)
    ]  # fmt: skip


def with_files(manifest: Manifest, files: list[File]) -> Manifest:
    """The manifest with its files named."""
    return replace(manifest, files=tuple(sorted(files, key=lambda file: file.name)))
