"""The fork server: a process that has loaded what workers need and becomes each of them by forking. Loading torch takes
five core-seconds, a fork a few milliseconds.

    launcher ──{"settings", "env", "cwd"}, descriptors──> fork server ──fork──> go-between ──fork──> worker
             <──────────────{"pid": 123}────────────────       │ waits for the go-between, then lets the worker go on
             adopts the worker: of the processes above, it is the nearest that adopts (PR_SET_CHILD_SUBREAPER)

Runs as `-m partita.lab.fork_server CHANNEL`, CHANNEL the number of its end of a socket pair; ends with its launcher.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import socket
import sys
import traceback
from collections.abc import Mapping
from typing import Any, Final, NoReturn

from partita.lab.keeper import MARK

MARKED: Final = {MARK: 8, "RANK": 6}  # variables that `ps` shows of each worker, and their room in bytes
READ_BYTES: Final = 1 << 16  # at most, at a time
INPUT: Final = 3  # descriptors 0, 1 and 2 of a worker; one more is a socket that listens


class Marks:
    """The places of the `MARKED` variables in what the kernel shows as this process's environment: a program that is
    not executed anew keeps the strings that it began with, and no setting of a variable changes them."""

    def __init__(self) -> None:
        find = ctypes.CDLL(None).getenv
        find.restype = ctypes.c_void_p
        self.places = {name: find(name.encode()) for name in MARKED}

    def write(self, env: Mapping[str, str]) -> None:
        """Put the worker's values there."""
        for name, room in MARKED.items():
            if place := self.places[name]:
                ctypes.memmove(place, env.get(name, "").encode().ljust(room)[:room], room)


def blank() -> dict[str, str]:
    """The environment in which a fork server has to begin: room for the marks."""
    return {name: " " * room for name, room in MARKED.items()}


def attend(channel: socket.socket) -> None:
    """Fork a worker for each request, until the launcher ends."""
    marks = Marks()
    _load()
    poll = select.poll()
    launcher = os.pidfd_open(os.getppid())
    for handle in (channel.fileno(), launcher):
        poll.register(handle, select.POLLIN)
    while launcher not in dict(poll.poll()):
        text, handles, _, _ = socket.recv_fds(channel, READ_BYTES, INPUT + 1)
        while not text.endswith(b"\n"):
            if not (more := channel.recv(READ_BYTES) if text else b""):
                return
            text += more
        pid = _fork(json.loads(text), handles, marks)
        for handle in handles:
            os.close(handle)
        channel.sendall(json.dumps({"pid": pid}).encode() + b"\n")


def _load() -> None:
    """Load what workers need, and keep the collector of garbage away from it: a visit to an object copies its page."""
    import torch._dynamo  # noqa: F401  an optimizer's first step imports it

    from partita.lab import serve  # noqa: F401
    from partita.runs.heap import set_aside
    from partita.zoo import tasks  # noqa: F401

    set_aside()


def _fork(request: Mapping[str, Any], handles: list[int], marks: Marks) -> int:
    """The process id of a new worker, which the launcher has adopted."""
    ours, theirs = socket.socketpair()
    between = os.fork()
    if not between:
        try:
            if not os.fork():
                ours.close()
                os.setsid()
                marks.write(request["env"])
                theirs.sendall(b"%d" % os.getpid())
                theirs.recv(1)
                _become(request, handles)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    theirs.close()
    os.waitpid(between, 0)
    with ours:
        return int(ours.recv(READ_BYTES))


def _become(request: Mapping[str, Any], handles: list[int]) -> NoReturn:
    """Be the worker: its own descriptors, environment, namespaces and control groups."""
    import numpy as np

    from partita.lab import serve
    from partita.lab.enter import enter

    try:
        for number, handle in enumerate(handles):
            os.dup2(handle, number)
        os.closerange(len(handles), os.sysconf("SC_OPEN_MAX"))
        os.environ.clear()
        os.environ.update(request["env"])
        os.chdir(request["cwd"])
        if not sys.flags.safe_path:
            sys.path[0] = request["cwd"]
        np.random.seed()  # the server's state would be the same in all
        enter(**request["settings"])
        serve.main()
    except BaseException:
        traceback.print_exc()
    os._exit(1)


if __name__ == "__main__":
    attend(socket.socket(fileno=int(sys.argv[1])))
