"""The launcher's end of the fork server: starts it, has it fork workers, adopts them."""

from __future__ import annotations

import atexit
import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Final

from partita.errors import RunError
from partita.lab import fork_server
from partita.runs.heap import KEPT
from partita.units import Seconds

PR_SET_CHILD_SUBREAPER: Final = 36
PR_GET_CHILD_SUBREAPER: Final = 37
# What is read while an interpreter and its libraries load: with another value, a worker needs another fork server.
LOADED_BY: Final = ("LD_", "PYTHON", "PYTORCH_", "TORCH_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "MALLOC_",
                    "GLIBC_", "NUMBA_")  # fmt: skip
ONE_THREAD: Final = {"OMP_NUM_THREADS": "1", **KEPT}  # and freed memory kept, as every process of a lab has it
WORKER: Final = {**ONE_THREAD, "TORCH_CPP_LOG_LEVEL": "ERROR", "TORCHELASTIC_USE_AGENT_STORE": "False"}
servers: list[ForkServer] = []  # this process's, if there is one; or, in a fork, that of its parent
_starting = threading.Lock()


@dataclass
class Forked:
    """A worker that this process has adopted, with subprocess.Popen's names."""

    pid: int
    stdin: BinaryIO
    stdout: BinaryIO
    returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code, minus the signal's number for one that a signal ended; None while it runs."""
        if self.returncode is None:
            try:
                found, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # its exit code is lost where children's signals are ignored
                found, status = self.pid, 0
            self.returncode = os.waitstatus_to_exitcode(status) if found else None
        return self.returncode

    def wait(self, timeout: Seconds | None = None) -> int:
        """The exit code, once there is one. Raises subprocess.TimeoutExpired."""
        if self.poll() is None:
            watch = os.pidfd_open(self.pid)
            try:
                select.select([watch], [], [], timeout)
            finally:
                os.close(watch)
        if (code := self.poll()) is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired(f"worker {self.pid}", timeout)
        return code

    def kill(self) -> None:
        """End it, if it runs."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


@dataclass
class ForkServer:
    """A fork server of the launcher with process id `owner`; `loaded_by` is what it read of the environment."""

    owner: int
    loaded_by: dict[str, str]
    process: subprocess.Popen[bytes]
    channel: socket.socket
    log: int
    lock: threading.Lock = field(default_factory=threading.Lock)

    def fork(self, request: Mapping[str, Any], handles: Sequence[int]) -> int:
        """The process id of a new worker, a child of this process. Raises RunError if the server has ended."""
        try:
            with self.lock, _adopting():
                answer = self._ask(memoryview(json.dumps(request).encode() + b"\n"), handles)
        except BaseException:
            self.process.kill()  # its answer is still to come, and would be taken for the next one's
            self.process.wait()
            raise
        if not answer:
            said = os.pread(self.log, fork_server.READ_BYTES, 0).decode(errors="replace").strip().splitlines()[-20:]
            raise RunError("\n".join(["workers cannot be started: the process that forks them ended", *said]))
        pid: int = json.loads(answer)["pid"]
        return pid

    def _ask(self, text: memoryview, handles: Sequence[int]) -> bytes:
        try:
            sent = socket.send_fds(self.channel, [text], handles)
            self.channel.sendall(text[sent:])
            return self.channel.recv(fork_server.READ_BYTES)
        except (BrokenPipeError, ConnectionResetError):
            return b""

    def close(self) -> None:
        """End it."""
        self.channel.close()
        os.close(self.log)
        if self.owner == os.getpid():
            self.process.kill()
            self.process.wait()


@contextmanager
def _adopting() -> Iterator[None]:
    """Within it, a process whose parent ends becomes a child of this one."""
    libc, before = ctypes.CDLL(None), ctypes.c_int()
    libc.prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        libc.prctl(PR_SET_CHILD_SUBREAPER, before.value, 0, 0, 0)


def fork_server_for(env: Mapping[str, str]) -> ForkServer:
    """This process's fork server for workers with the environment `env`. It may still be loading: nobody waits for that
    before the first worker."""
    loaded_by = {name: value for name, value in env.items() if name.startswith(LOADED_BY)}
    with _starting:
        for server in servers:
            if (server.owner, server.loaded_by) == (os.getpid(), loaded_by) and server.process.poll() is None:
                return server
        end_fork_server()
        servers.append(_start(env, loaded_by))
        return servers[0]


def load_ahead() -> None:
    """Have a fork server load what workers need while this process does something else; not under torchrun, where this
    process is a worker itself."""
    if not os.environ.get("RANK"):
        fork_server_for({**os.environ, **WORKER})


def _start(env: Mapping[str, str], loaded_by: dict[str, str]) -> ForkServer:
    ours, theirs = socket.socketpair()
    log = os.memfd_create("fork-server")
    argv = [sys.executable, "-m", fork_server.__name__, str(theirs.fileno())]
    nothing = subprocess.DEVNULL
    with theirs:
        process = subprocess.Popen(
            argv, stdin=nothing, stdout=nothing, stderr=log, env={**env, **fork_server.blank()},
            pass_fds=(theirs.fileno(),), start_new_session=True,
        )  # fmt: skip
    return ForkServer(os.getpid(), loaded_by, process, ours, log)


@atexit.register
def end_fork_server() -> None:
    """End this process's fork server, if there is one; workers live on."""
    while servers:
        servers.pop().close()


def fork_worker(env: Mapping[str, str], settings: Mapping[str, Any], error: int, listener: int | None) -> Forked:
    """A worker with pipes for its standard input and output, `error` as its standard error, and `listener` as its
    descriptor 3. Raises RunError."""
    (stdin, given), (taken, stdout) = os.pipe(), os.pipe()
    try:
        request = {"settings": settings, "env": env, "cwd": os.getcwd()}
        handles = (stdin, stdout, error, *(() if listener is None else (listener,)))
        pid = fork_server_for(env).fork(request, handles)
    except BaseException:
        os.close(given)
        os.close(taken)
        raise
    finally:
        os.close(stdin)
        os.close(stdout)
    return Forked(pid, open(given, "wb", buffering=0), open(taken, "rb", buffering=0))
