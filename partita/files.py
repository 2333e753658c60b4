"""Files that are written whole or not at all, under another name first, which is then changed to their own; where
temporary ones go; what a file, or a text in TOML or JSON, says."""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import re
import stat
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from partita.errors import OptionError

WIDEST: Final = 14_000  # bits of a whole number: of much more, Python does not make a text


@contextmanager
def atomically(path: Path, *, durable: bool = False) -> Iterator[Path]:
    """A context that yields the path to write to, in the same folder. What was written there replaces `path` when the
    block ends, and is removed when it raises. What killed writers of `path` have left there is removed first.

    A file that is `durable` is there after a power failure too, the old one or all of the new one; only one process may
    write it at a time, which writes over what a killed one has left. Raises OSError.
    """
    if not durable:
        _sweep(path)
    fresh = path.with_suffix(".part") if durable else path.with_name(f".{path.name}.{os.getpid()}")
    handle = -1 if durable else _held(fresh)
    try:
        yield fresh
        if durable:
            place(fresh, path)
        else:
            fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)
        if handle >= 0:
            os.close(handle)


def _held(fresh: Path) -> int:
    """A handle on a file that is made here, locked: as long as it is, its writer lives. Raises OSError."""
    while True:
        handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        with suppress(OSError):  # where no file can be locked, none is swept either
            fcntl.flock(handle, fcntl.LOCK_EX)
        with suppress(FileNotFoundError):  # somebody swept it between the two
            if os.path.samestat(os.fstat(handle), fresh.lstat()):
                return handle
        os.close(handle)


def _sweep(path: Path) -> None:
    """Remove what writers of `path` have left that live no more, on whichever machine: nobody holds its lock."""
    name = re.compile(rf"\.{re.escape(path.name)}\.\d+")
    names = list[str]()
    with suppress(PermissionError):  # a folder that may be written but not looked into
        names = os.listdir(path.parent)
    for left in [path.with_name(each) for each in names if name.fullmatch(each)]:
        with suppress(OSError):  # its writer lives, or it is gone by now, or somebody else's
            handle = os.open(left, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(os.fstat(handle), left.lstat()):
                    left.unlink()
            finally:
                os.close(handle)


def place(fresh: Path, path: Path) -> None:
    """Give a file that is written its name: on the disk there is the old one, or all of the new one. Raises OSError."""
    sync(fresh)
    fresh.replace(path)
    sync(path.parent)


def write_whole(path: Path, text: str) -> None:
    """Write a text file in UTF-8, so that whoever is killed or finds no room leaves what was there. What a link points
    to is written, not the link; a pipe or a terminal takes the text itself. Raises OSError."""
    if os.path.exists(path) and not os.path.isfile(path):
        path.write_text(text, encoding="utf-8")
        return
    with atomically(path.resolve()) as fresh:
        fresh.write_text(text, encoding="utf-8")


def read_whole(path: Path) -> str:
    """The text of a file in UTF-8, or of a pipe. One that nobody writes to is not waited for, nor is a device, which
    may have no end. Raises OSError, and ValueError for what is no text."""
    with open(path, encoding="utf-8-sig", opener=_at_once) as file:
        kind = os.fstat(file.fileno()).st_mode
        if stat.S_ISCHR(kind) or stat.S_ISBLK(kind):
            raise OSError(errno.EINVAL, "it is a device", str(path))
        os.set_blocking(file.fileno(), True)
        text = file.read()
    if not text and stat.S_ISFIFO(kind):
        raise OSError(errno.ENODATA, "it is a pipe that nobody writes to", str(path))
    return text


def _at_once(path: str, flags: int) -> int:
    """Open a file; a pipe also where its other end is not open."""
    return os.open(path, flags | os.O_NONBLOCK)


def sync(path: Path) -> None:
    """Wait until a file, or the names in a directory, are on the disk. Raises OSError."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def temporary_folder() -> Path:
    """Where temporary files go. Raises OptionError where no folder takes any: torch needs one to compute, and whoever
    asks first gets the blame."""
    try:
        return Path(tempfile.gettempdir())
    except OSError as error:
        raise OptionError(f"{error.strerror}; make room in one, or set TMPDIR to a folder that has some") from None


@contextmanager
def temporary(folder: Path) -> Iterator[None]:
    """A context in which nothing but temporary files are written, into `folder`: raises OptionError where it takes
    none."""
    try:
        yield
    except OSError as error:
        raise OptionError(
            f"temporary files cannot be written in {folder} ({error.strerror or error}); make room there, or set "
            "TMPDIR to a folder that has some"
        ) from None


def read_toml(text: str) -> dict[str, Any]:
    """What a TOML text says. Raises ValueError with the reason for a text that is none: also one nested too deep, and
    one with a number so long that no sentence could print it."""
    try:
        found = tomllib.loads(text)
    except RecursionError:
        raise ValueError("its brackets are nested too deep") from None
    left: list[Any] = [found]
    while left:
        each = left.pop()
        left += each.values() if isinstance(each, dict) else each if isinstance(each, list) else ()
        if isinstance(each, int) and each.bit_length() > WIDEST:
            raise ValueError(f"it has a number of {each.bit_length()} bits")
    return found


def read_json(text: str | bytes, *, finite: bool = True, wide: bool = False) -> Any:
    """What a JSON text says. Raises ValueError with the reason for a text that is none: also one nested too deep, one
    that says a key twice, one with a number beyond floats or, unless these may be `wide`, beyond 64 bits; NaN and
    Infinity, which are no JSON, where numbers are to be `finite`."""

    def whole(digits: str) -> int:
        if not wide and not -(2**63) <= (number := int(digits)) < 2**64:
            raise ValueError(f"it has a number of {number.bit_length()} bits")
        return int(digits)

    def real(digits: str) -> float:
        if math.isfinite(number := float(digits)):
            return number
        raise ValueError(f"it has the number {digits[:40]}, beyond what a float holds")

    def constant(word: str) -> float:
        if finite:
            raise ValueError(f"it has {word}, which is no number of JSON")
        return float(word)

    try:
        return json.loads(
            text, parse_int=whole, parse_float=real, parse_constant=constant, object_pairs_hook=_keyed_once
        )
    except RecursionError:
        raise ValueError("its brackets are nested too deep") from None


def _keyed_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise ValueError(f"it says {twice[:40]!r} twice")
    return found
