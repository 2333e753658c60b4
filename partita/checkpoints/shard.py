"""One rank's file of a checkpoint: safetensors, with plain values as JSON in its header. Nothing is pickled."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from partita.checkpoints.entry import ALIKE, Entry, read_entry
from partita.checkpoints.plain import from_plain, to_plain
from partita.errors import InputError, first_line
from partita.files import place, read_json
from partita.units import Bytes

VALUES: Final = "partita"
HEADER: Final[Bytes] = 2**16


@dataclass
class Shard:
    """What one rank writes: tensors and plain values."""

    tensors: dict[Entry, torch.Tensor] = field(default_factory=dict)
    values: dict[Entry, Any] = field(default_factory=dict)

    @property
    def size(self) -> Bytes:
        """About the bytes of its file."""
        tensors = sum(t.numel() * t.element_size() for t in self.tensors.values())
        return tensors + HEADER + 256 * (len(self.tensors) + len(self.values))


@dataclass(frozen=True, slots=True)
class File:
    """A written shard: its name without a directory, size and digest."""

    name: str
    size: Bytes
    sha256: str


def write_shard(shard: Shard, directory: Path, rank: int) -> File:
    """Write `rank-<rank>.safetensors` whole or not at all.

    Raises OSError where there is no space, TaskError for values that cannot be written.
    """
    path = directory / f"rank-{rank}.safetensors"
    values = {str(entry): to_plain(value, entry.detail or entry.kind) for entry, value in shard.values.items()}
    tensors = {str(entry): tensor.detach().contiguous() for entry, tensor in shard.tensors.items()}
    return write_tensors(tensors, path, {VALUES: json.dumps(values, allow_nan=False)})


def write_tensors(tensors: dict[str, torch.Tensor], path: Path, words: dict[str, str] | None = None) -> File:
    """Write tensors, and `words` in the header, whole or not at all: in a folder beside, to the disk, then moved. What
    somebody left there who was killed goes with the folder, also files of safetensors, whose names are its own. Raises
    OSError."""
    folder = path.with_suffix(".writing")
    fresh = folder / path.name
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir()
    try:
        write_unsynced(tensors, fresh, words)
        found = File(path.name, fresh.stat().st_size, sha256_of(fresh))
        place(fresh, path)
    finally:
        fresh.unlink(missing_ok=True)
        with suppress(OSError):  # safetensors may have left something of its own: the next writer removes it
            folder.rmdir()
    return found


def write_unsynced(tensors: dict[str, torch.Tensor], path: Path, words: dict[str, str] | None = None) -> None:
    """Write tensors, and `words` in the header, without waiting for the disk. Raises OSError."""
    try:
        save_file(tensors, path, words)
    except SafetensorError as error:
        raise OSError(str(error)) from error


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Contents:
    """The tensors and values of several shards, read when they are asked for."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self.values: dict[Entry, Any] = {}
        self._open: dict[Entry, Any] = {}
        self._parts: dict[tuple[str, str, str, int], list[Entry]] = {}
        self._copies: dict[tuple[str, str], dict[str, set[int]]] = {}
        for path in paths:
            try:
                file: Any = safe_open(path, "pt")
                values = read_json((file.metadata() or {})[VALUES], wide=True)  # states of generators are wide
                if not isinstance(values, dict):
                    raise ValueError("its values have no names")
            except OSError as error:
                raise InputError(f"{path} cannot be read ({first_line(error)}); make it readable") from error
            except (SafetensorError, KeyError, ValueError) as error:
                raise InputError(
                    f"{path} is no shard of a checkpoint (safetensors with Partita's header); nothing in it was run "
                    "or read; remove that checkpoint"
                ) from error
            self.values |= {read_entry(key): from_plain(value) for key, value in values.items()}
            self._open |= {read_entry(key): file for key in file.keys()}  # noqa: SIM118
        for entry in sorted((*self._open, *self.values), key=lambda entry: entry.start):
            self._parts.setdefault((entry.kind, entry.name, entry.detail, entry.rank), []).append(entry)
            self._copies.setdefault((entry.kind, entry.name), {}).setdefault(entry.detail, set()).add(entry.rank)

    def tensor(self, entry: Entry) -> torch.Tensor:
        """A tensor by its entry."""
        found: torch.Tensor = self._open[entry].get_tensor(str(entry))
        return found

    def whole(self, kind: str, name: str, rank: int) -> torch.Tensor:
        """A tensor that is never cut."""
        return self.tensor(Entry(kind, name, rank=rank))

    def has_tensor(self, entry: Entry) -> bool:
        """Whether there is a tensor of that entry."""
        return entry in self._open

    def parts(self, kind: str, name: str = "", detail: str = "", rank: int = ALIKE) -> list[Entry]:
        """The entries that hold parts of one tensor, in order."""
        return self._parts.get((kind, name, detail, rank), [])

    def ranks(self, kind: str, name: str = "", detail: str = "") -> tuple[int, ...]:
        """The ranks of which there are copies of something; (ALIKE,) if one copy is for all."""
        return tuple(sorted(self._copies.get((kind, name), {}).get(detail, ())))

    def entries(self, kind: str) -> list[Entry]:
        """All tensors of a kind."""
        return [entry for entry in self._open if entry.kind == kind]

    def names(self) -> tuple[tuple[str, str], ...]:
        """Every (kind, name) of which there are entries."""
        return tuple(self._copies)

    def details(self, kind: str, name: str) -> tuple[str, ...]:
        """The details under which there are entries of a kind and name."""
        return tuple(sorted(self._copies.get((kind, name), ())))
