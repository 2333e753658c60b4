"""One command on every device of a lab: the way in which other systems are measured under the same conditions."""

from __future__ import annotations

import selectors
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol, runtime_checkable

from partita.cluster.cluster import Cluster
from partita.errors import OptionError
from partita.lab.lines import Lines
from partita.lab.network import open_lab
from partita.units import Seconds

EXIT_TIMEOUT: Final[Seconds] = 2.0  # of the others, once a process has failed


@runtime_checkable
class Sink(Protocol):
    """A binary output: a file or a buffer."""

    def write(self, data: bytes, /) -> Any:
        """Write bytes."""

    def flush(self) -> Any:
        """Flush what was written."""


def run_command(cluster: Cluster, argv: Sequence[str], *, out: Sink | None = None, err: Sink | None = None) -> int:
    """Runs `argv` on every device; the exit code of the first that failed, 128 + n for one that signal n ended.

    Rank 0's standard output goes to `out`, all else to `err` with the rank before each line (this process's own two by
    default). Once one has failed the others have 2 s to end. Raises ClusterError, OptionError.
    """
    if not argv:
        raise OptionError("there is no command to run; give one after --, such as -- python train.py")
    out, err = out or sys.stdout.buffer, err or sys.stderr.buffer
    with open_lab(cluster) as lab, selectors.DefaultSelector() as selector:
        for note in lab.notes:
            err.write(f"lab: {note}\n".encode())
        err.flush()
        lab.free_port()
        processes, pipes = [], []
        for rank in range(cluster.size):
            process = lab.spawn(rank, argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            assert process.stdout
            assert process.stderr
            mark = b"[%d] " % rank
            plain = (process.stdout, out, b"") if rank == 0 else (process.stdout, err, mark)
            for pipe, sink, before in (plain, (process.stderr, err, mark)):
                pipes.append(pipe)
                selector.register(pipe, selectors.EVENT_READ, OutputPipe(Lines(pipe.fileno()), sink, before))
            selector.register(lab.watch(process), selectors.EVENT_READ, process)
            processes.append(process)
        try:
            return _attend(selector, processes)
        finally:
            for pipe in pipes:
                pipe.close()


@dataclass(frozen=True, slots=True)
class OutputPipe:
    """A pipe from a process, the sink for its lines, and the mark before each line."""

    lines: Lines
    sink: Sink
    mark: bytes

    def forward(self) -> bool:
        """Write the lines that have arrived; whether the pipe has ended. Those that nobody reads any more, as behind
        `| head`, are dropped."""
        lines = self.lines.take()
        with suppress(BrokenPipeError):
            for line in lines:
                self.sink.write(self.mark + line + b"\n")
            self.sink.flush()
        return self.lines.ended


def _attend(selector: selectors.BaseSelector, processes: Sequence[subprocess.Popen[Any]]) -> int:
    """Pass output on until all processes have ended, or one has failed and the others have had their time."""
    code, end = 0, float("inf")
    left = set(processes)
    while left and time.monotonic() < end:
        for key, _ in selector.select(None if end == float("inf") else max(0.0, end - time.monotonic())):
            if isinstance(key.data, OutputPipe):
                if key.data.forward():
                    selector.unregister(key.fileobj)
                continue
            selector.unregister(key.fileobj)
            left.discard(key.data)
            ended = key.data.wait()
            if ended and not code:
                code, end = ended if ended > 0 else 128 - ended, time.monotonic() + EXIT_TIMEOUT
    for key in selector.get_map().values():
        if isinstance(key.data, OutputPipe):
            key.data.forward()
    return code
