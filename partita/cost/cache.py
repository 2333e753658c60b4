"""Measured times of operators, cached between runs.

There is one JSON file for each processor model, torch version, thread count, quota and load. A value is core-seconds of
the operator divided by core-seconds of a reference kernel that was timed at the same moment, because a host's speed
drifts.

Every file here has a digest of all the rest, so that one which is torn, damaged or written by hand is measured anew and
not believed.
"""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from partita.files import read_json, write_whole
from partita.graph.flops import OPAQUE
from partita.graph.text import digest_of
from partita.units import Seconds

METHOD: Final = 11  # raised when the way of timing changes
DIGEST: Final = "sha256"
MOST: Final = 1e12  # times as long as the reference kernel


def cache_folder() -> Path:
    """Where what was measured is kept: in XDG_CACHE_HOME if that is a path from the root, as its specification has it,
    else in the home of the user. Nothing can be kept for one who has none: no file is in os.devnull."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    home = os.path.expanduser("~")  # as it is, where nobody knows
    beside = os.path.join(home, ".cache") if os.path.isabs(home) else os.devnull
    return Path(given if os.path.isabs(given) else beside) / "partita"


def cache_place(torch_version: str, cores: float, busy: bool) -> Path:
    """The file for operators on this machine under these conditions."""
    words = (
        f"{processor_name()}-torch{torch_version}-method{METHOD}-threads1-cores{cores:g}-{'busy' if busy else 'alone'}"
    )
    return cache_folder() / (re.sub(r"[^A-Za-z0-9.]+", "-", words) + ".json")


def processor_name() -> str:
    """The processor's model name."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or platform.machine()
    found = re.search(r"model name\s*:\s*(.+)", text)
    return found[1].strip() if found else platform.machine()


def read_cache(place: Path) -> dict[str, float]:
    """Signature -> relative time; empty if the file does not exist or cannot be read, without what is no time."""
    return {name: value for name, value in read_table(place).items() if type(value) is float and 0 < value < MOST}


def write_cache(place: Path, seconds: dict[str, Seconds], reference: Seconds) -> None:
    """Add the times of operators to the file, atomically; where it cannot be written they are timed again next time.
    Opaque operators are left out: a signature does not tell one model from another."""
    named = {name: value / reference for name, value in seconds.items() if not name.startswith(OPAQUE)}
    write_table(place, read_cache(place) | named)


def read_table(place: Path) -> dict[str, Any]:
    """The JSON object that `write_table` wrote into a file; empty if the file does not exist or holds anything else."""
    with suppress(OSError, ValueError, RecursionError):
        table = read_json(place.read_text()) if place.is_file() else None  # a pipe would be waited for
        if isinstance(table, dict) and table.pop(DIGEST, None) == digest_of(table):
            return table
    return {}


def write_table(place: Path, table: Mapping[str, Any]) -> None:
    """Write a JSON object, whole or not at all, if that is possible."""
    with suppress(OSError, ValueError):  # or if a number in it is none
        place.parent.mkdir(parents=True, exist_ok=True)
        write_whole(place, json.dumps({**table, DIGEST: digest_of(dict(table))}))
