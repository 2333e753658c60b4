"""Files that are written whole or not at all: under another name first, which is then changed to their own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def atomically(path: Path, *, durable: bool = False) -> Iterator[Path]:
    """A context that yields the path to write to, in the same folder. What was written there replaces `path` when the
    block ends, and is removed when it raises.

    A file that is `durable` is there after a power failure too, the old one or all of the new one; only one process may
    write it at a time, which writes over what a killed one has left. Raises OSError.
    """
    fresh = path.with_suffix(".part") if durable else path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield fresh
        if durable:
            sync(fresh)
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)
    if durable:
        sync(path.parent)


def sync(path: Path) -> None:
    """Wait until a file, or the names in a directory, are on the disk. Raises OSError."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
