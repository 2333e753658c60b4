"""One command on every device of a lab, which is how other systems are measured in the same place."""

from __future__ import annotations

import selectors
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any, BinaryIO, Final

from partita.cluster.cluster import Cluster
from partita.errors import OptionError
from partita.lab.lab import Lab
from partita.lab.lines import Lines
from partita.lab.network import open_lab

FAREWELL: Final = 2.0


def run_command(cluster: Cluster, argv: Sequence[str], *, out: BinaryIO | None = None, err: BinaryIO | None = None) -> int:
    """Runs `argv` on every device; the exit code of the first that failed, 128 + n for one that signal n ended.

    Rank 0's standard output goes to `out`, all else to `err` with the rank before each line (this process's own two by
    default). Once one has failed the others have 2 s to end. Raises ClusterError, OptionError.
    """
    if not argv:
        raise OptionError("there is no command to run; give one after --, such as -- python train.py")
    out, err = out or sys.stdout.buffer, err or sys.stderr.buffer
    with open_lab(cluster) as lab:
        for note in lab.notes:
            err.write(f"lab: {note}\n".encode())
        err.flush()
        lab.free_port()
        processes = [
            lab.spawn(rank, argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            for rank in range(cluster.size)
        ]
        return _attend(lab, processes, out, err)


def _attend(lab: Lab, processes: list[subprocess.Popen[Any]], out: BinaryIO, err: BinaryIO) -> int:
    """Passes output on until all have ended, or the first failure and its farewell."""
    code, end = 0, float("inf")
    left = set(range(len(processes)))
    with selectors.DefaultSelector() as selector:
        for rank, process in enumerate(processes):
            for pipe, sink in ((process.stdout, out if rank == 0 else err), (process.stderr, err)):
                selector.register(pipe, selectors.EVENT_READ, (Lines(pipe.fileno()), sink, rank))
            selector.register(lab.watch(process), selectors.EVENT_READ, rank)
        while selector.get_map() and left and time.monotonic() < end:
            for key, _ in selector.select(None if end == float("inf") else max(0.0, end - time.monotonic())):
                if not isinstance(key.data, int):
                    if _pass_on(*key.data, out):
                        selector.unregister(key.fileobj)
                    continue
                selector.unregister(key.fileobj)
                left.discard(key.data)
                ended = processes[key.data].wait()
                if ended and not code:
                    code, end = ended if ended > 0 else 128 - ended, time.monotonic() + FAREWELL
        for key in list(selector.get_map().values()):
            if not isinstance(key.data, int):
                _pass_on(*key.data, out)
    return code


def _pass_on(lines: Lines, sink: BinaryIO, rank: int, out: BinaryIO) -> bool:
    """Writes what has arrived; whether the pipe has ended."""
    for line in lines.take():
        sink.write((b"" if sink is out else b"[%d] " % rank) + line + b"\n")
    sink.flush()
    return lines.ended
