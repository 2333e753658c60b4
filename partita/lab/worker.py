"""The launcher's end of one worker: its pipes, its log and its progress."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from partita.files import temporary
from partita.lab.fork_client import Forked
from partita.lab.lab import Lab
from partita.lab.lines import Lines
from partita.units import Seconds


@dataclass
class Worker:
    """A process on the device of `rank`. `step` is the last step that it reported for the current request (-1:
    none), `ready` whether it reported that it goes to meet the others, `stands` its last report of standing still since
    it last moved, `heard` the time of its last message."""

    rank: int
    process: subprocess.Popen[Any] | Forked
    lines: Lines
    watch: int
    path: Path
    log: BinaryIO
    stdin: int
    unsaid: bytes = b""
    step: int = -1
    ready: bool = False
    ended: bool = False
    stands: dict[str, Any] | None = None
    heard: Seconds = 0.0

    def tell(self, message: Mapping[str, Any]) -> None:
        """Queues a message; `flush` sends what the pipe takes without blocking."""
        self.unsaid += json.dumps(message).encode() + b"\n"
        self.flush()

    def flush(self) -> None:
        """Send as much of the queued messages as the pipe takes without blocking."""
        try:
            while self.unsaid:
                self.unsaid = self.unsaid[os.write(self.stdin, self.unsaid) :]
        except BlockingIOError:
            return
        except BrokenPipeError:
            self.unsaid = b""

    def hear(self) -> Iterator[dict[str, Any]]:
        """The messages that have arrived; any other line is added to the log."""
        for line in self.lines.take():
            try:
                message = json.loads(line)
            except ValueError:
                message = None
            if isinstance(message, dict):
                yield message
            else:
                self.log.write(line + b"\n")
                self.log.flush()

    def tail(self, lines: int = 20) -> str:
        """The last lines of its standard error, 64 KiB at most."""
        with self.path.open("rb") as file:
            file.seek(max(0, self.path.stat().st_size - (1 << 16)))
            return "\n".join(file.read().decode(errors="replace").splitlines()[-lines:])

    def close(self) -> None:
        """Close the pipes and the log."""
        for pipe in (self.process.stdin, self.process.stdout, self.log):
            if pipe:
                pipe.close()


def start_worker(lab: Lab, rank: int, argv: Sequence[str], env: Mapping[str, str], path: Path, listen: bool) -> Worker:
    """Starts `argv`, or forks a worker if it is empty, on the device of `rank`, its standard error appended to the file
    at `path`."""
    with temporary(path.parent):
        log = path.open("ab", buffering=0)
    process: subprocess.Popen[Any] | Forked
    if argv:
        pipe, listen = subprocess.PIPE, listen and rank == 0
        process = lab.spawn(rank, argv, env, listen=listen, stdin=pipe, stdout=pipe, stderr=log, bufsize=0)
    else:
        process = lab.fork(rank, env, log.fileno(), listen=listen and rank == 0)
    assert process.stdin
    assert process.stdout
    os.set_blocking(process.stdin.fileno(), False)
    return Worker(rank, process, Lines(process.stdout.fileno()), lab.watch(process), path, log, process.stdin.fileno())
