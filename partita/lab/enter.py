"""The first instruction of every process in the lab: `enter.py SETTINGS COMMAND ...`.

Runs as a script before anything heavy is loaded. SETTINGS is JSON: `parent` the launcher's pid, `namespaces` paths to
enter in order with their kind, `groups` files of control groups to write oneself into, `core` the one to stay on (-1:
any). Then COMMAND takes its place.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
NOT_FOUND = 127


def enter(parent: int, namespaces: list[tuple[str, int]], groups: list[str], core: int) -> None:
    """Dies with `parent` from now on, and belongs to the namespaces and control groups. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
    for path in groups:
        with open(path, "w") as file:
            file.write("0")
    if core >= 0:
        os.sched_setaffinity(0, {core})
    handles = [(os.open(path, os.O_RDONLY | os.O_CLOEXEC), kind) for path, kind in namespaces]
    for handle, kind in handles:
        if libc.setns(handle, kind) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter a namespace of kind {kind:#x}")


if __name__ == "__main__":
    settings = json.loads(sys.argv[1])
    enter(settings["parent"], settings["namespaces"], settings["groups"], settings["core"])
    try:
        os.execvp(sys.argv[2], sys.argv[2:])
    except OSError as error:
        print(f"partita: cannot run {sys.argv[2]!r}: {error.strerror}", file=sys.stderr)
        sys.exit(NOT_FOUND)
