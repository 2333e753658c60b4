"""Operator times kept between runs, relative to a reference kernel, because hosts drift.

One JSON file for each kind of processor, torch version, thread count, quota and load; a value is core-seconds of the
operator over core-seconds of the reference kernel that was timed beside it.
"""

from __future__ import annotations

import json
import os
import platform
import re
from pathlib import Path
from typing import Final

from partita.graph.flops import OPAQUE
from partita.units import Seconds

METHOD: Final = 5  # raised when the way of timing changes


def cache_place(torch_version: str, cores: float, busy: bool) -> Path:
    """The file for operators on this machine under these conditions."""
    root = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "partita"
    words = (
        f"{processor_name()}-torch{torch_version}-method{METHOD}-threads1-cores{cores:g}-{'busy' if busy else 'alone'}"
    )
    return root / (re.sub(r"[^A-Za-z0-9.]+", "-", words) + ".json")


def processor_name() -> str:
    """What the machine calls its processor."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or platform.machine()
    found = re.search(r"model name\s*:\s*(.+)", text)
    return found[1].strip() if found else platform.machine()


def read_cache(place: Path) -> dict[str, float]:
    """Signature -> relative time; empty where there is no file or it cannot be read."""
    try:
        table = json.loads(place.read_text())
    except (OSError, ValueError):
        return {}
    return {k: float(v) for k, v in table.items()} if isinstance(table, dict) else {}


def write_cache(place: Path, seconds: dict[str, Seconds], reference: Seconds) -> None:
    """Add operators to the file; a crash leaves the old one. What a whole model takes its signature does not say."""
    named = {name: value / reference for name, value in seconds.items() if not name.startswith(OPAQUE)}
    table = read_cache(place) | named
    place.parent.mkdir(parents=True, exist_ok=True)
    fresh = place.with_suffix(f".{os.getpid()}")
    fresh.write_text(json.dumps(table))
    fresh.replace(place)
