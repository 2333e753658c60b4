"""Records of what a lab makes on the machine, written before it is made, so that the next start can remove what is
left."""

from __future__ import annotations

import base64
import json
import os
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from partita.errors import ClusterError
from partita.files import temporary, temporary_folder, write_whole
from partita.lab.keeper import alive, started, sweep

SCRATCH: Final = "partita-run-"


@dataclass(frozen=True, slots=True)
class Record:
    """A lab's record: `run` marks its processes, `owner` is its launcher (pid, start in ticks), `place` the boot and
    PID namespace in which pids are valid, `groups` the directories of its control groups, `folders` its temporary
    folders."""

    run: str
    place: str
    owner: tuple[int, int]
    groups: tuple[str, ...]
    folders: tuple[str, ...] = ()


def new_run() -> str:
    """A name that no other lab has: eight of `a-z2-7`."""
    return base64.b32encode(os.urandom(5)).decode().lower()


def state_directory() -> Path:
    """A directory that only this user can write: in XDG_RUNTIME_DIR, else in /tmp. Raises ClusterError."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    path = Path(runtime) / "partita" if runtime else temporary_folder() / f"partita-{os.getuid()}"
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.lstat()
    except OSError as error:
        raise ClusterError(f"the lab cannot write records in {path} ({error.strerror}); set XDG_RUNTIME_DIR") from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise ClusterError(f"{path} is not a directory of yours alone; remove it or set XDG_RUNTIME_DIR")
    return path


def place() -> str:
    """This boot of the machine and this PID namespace: where the pids of a record are valid."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {os.readlink('/proc/self/ns/pid')}"


def write_record(path: Path, run: str, groups: tuple[str, ...], folders: tuple[str, ...] = ()) -> None:
    """Writes the record of this process's lab `run`, whole or not at all. Raises ClusterError if it has no room."""
    record = Record(run, place(), (os.getpid(), started(os.getpid())), groups, folders)
    try:
        write_whole(path, json.dumps(asdict(record)))
    except OSError as error:
        raise ClusterError(
            f"the lab cannot write records in {path.parent} ({error.strerror}); make room there, or set XDG_RUNTIME_DIR"
        ) from None


@contextmanager
def scratch() -> Iterator[Path]:
    """A context with a temporary folder. It is recorded before it is made, so that the next start removes it if this
    process is killed."""
    run = new_run()
    folder, record = temporary_folder() / f"{SCRATCH}{run}", state_directory() / f"lab-{run}.json"
    write_record(record, run, (), (str(folder),))
    try:
        with temporary(folder.parent):
            folder.mkdir(mode=0o700)
        yield folder
    finally:
        _remove(str(folder))
        record.unlink(missing_ok=True)


def _remove(folder: str) -> None:
    """Remove a folder, if `scratch` could have made it, whatever a record says; links are not followed."""
    if Path(folder).name.startswith(SCRATCH):
        shutil.rmtree(folder, ignore_errors=True)


def reap() -> tuple[str, ...]:
    """Remove what is left of labs whose launcher is gone; returns their names."""
    reaped = []
    for path in sorted(state_directory().glob("lab-*.json")):
        record = _read(path)
        if record is None or _deserted(record, path):
            clear(path)
            reaped += [record.run] if record else []
    return tuple(reaped)


def clear(path: Path) -> None:
    """Remove what a lab has left by its record at `path` (processes, control groups, folders), and the record."""
    if record := _read(path):
        sweep(record.run, list(record.groups))
        for folder in record.folders:
            _remove(folder)
    path.unlink(missing_ok=True)


def _deserted(record: Record, path: Path) -> bool:
    """Whether the launcher is gone: its process has ended, or this machine has started since the record was written.
    Of another PID namespace nothing is known."""
    here = place()
    if record.place == here:
        return not alive(record.owner)
    booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    return record.place.split()[:1] != here.split()[:1] and path.stat().st_mtime < booted


def _read(path: Path) -> Record | None:
    try:
        raw = json.loads(path.read_text())
        pid, start = raw["owner"]
        groups, folders = (tuple(map(str, raw.get(name, ()))) for name in ("groups", "folders"))
        return Record(str(raw["run"]), str(raw["place"]), (int(pid), int(start)), groups, folders)
    except (OSError, ValueError, KeyError, TypeError):
        return None
