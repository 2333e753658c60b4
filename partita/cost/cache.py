"""Measured times of operators, cached between runs.

There is one JSON file for each processor model, torch version, thread count, quota and load. A value is core-seconds of
the operator divided by core-seconds of a reference kernel that was timed at the same moment, because a host's speed
drifts.
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

from partita.atomic import atomically
from partita.graph.flops import OPAQUE
from partita.units import Seconds

METHOD: Final = 9  # raised when the way of timing changes


def cache_folder() -> Path:
    """Where what was measured is kept."""
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "partita"


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
    """Signature -> relative time; empty if the file does not exist or cannot be read."""
    try:
        return {k: float(v) for k, v in read_table(place).items()}
    except (ValueError, TypeError):
        return {}


def write_cache(place: Path, seconds: dict[str, Seconds], reference: Seconds) -> None:
    """Add the times of operators to the file, atomically; where it cannot be written they are timed again next time.
    Opaque operators are left out: a signature does not tell one model from another."""
    named = {name: value / reference for name, value in seconds.items() if not name.startswith(OPAQUE)}
    write_table(place, read_cache(place) | named)


def read_table(place: Path) -> dict[str, Any]:
    """The JSON object in a file; empty if the file does not exist or holds none."""
    with suppress(OSError, ValueError):
        table = json.loads(place.read_text())
        if isinstance(table, dict):
            return table
    return {}


def write_table(place: Path, table: Mapping[str, Any]) -> None:
    """Write a JSON object, whole or not at all, if that is possible."""
    with suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True)
        with atomically(place) as fresh:
            fresh.write_text(json.dumps(table))
