"""Where and how a result was made: the command, the moment, the machine, the versions."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

import psutil

import partita
from partita.cost.cache import processor_name
from partita.units import Seconds, show_bytes

PACKAGES: Final = ("partita", "torch", "numpy", "numba", "safetensors")
GIT_TIMEOUT: Final[Seconds] = 5.0


@dataclass(frozen=True, slots=True)
class Environment:
    """`versions` are (package, version); `commit` is empty where the package is not run from its own repository."""

    command: str
    date: str
    machine: str
    system: str
    versions: tuple[tuple[str, str], ...]
    commit: str = ""


def environment() -> Environment:
    """Of this process. Loads none of the packages whose versions it says."""
    memory = show_bytes(psutil.virtual_memory().total)
    return Environment(
        command_line(sys.argv), datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        f"{processor_name()}, {os.cpu_count() or 1} cores, {memory} memory",
        f"{platform.system()} {platform.release()}",
        versions(), commit_of(_source()),
    )  # fmt: skip


def versions() -> tuple[tuple[str, str], ...]:
    """(package, version) of Python and of what results depend on."""
    return (("python", platform.python_version()), *((name, _version(name)) for name in PACKAGES))


def command_line(argv: list[str]) -> str:
    """What to type to do the same again."""
    program, *words = argv or [""]
    name = Path(program).name
    ours = name in ("partita", "__main__.py")
    return shlex.join(["partita", *words] if ours else ["python", program or "-", *words])


def commit_of(folder: Path) -> str:
    """The commit of a repository whose root is `folder`, and whether files differ from it; empty where it is none."""
    if not (folder / ".git").exists():
        return ""
    found = [_git(folder, "rev-parse", "--short=12", "HEAD"), _git(folder, "status", "--porcelain", "-uno")]
    return f"{found[0]}, with changes" if found[0] and found[1] else found[0]


def _git(folder: Path, *words: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words], capture_output=True, text=True, timeout=GIT_TIMEOUT, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _source() -> Path:
    return Path(partita.__file__).parent.parent


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
