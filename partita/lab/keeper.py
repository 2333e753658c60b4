"""The keeper of one lab: a small process that holds its namespaces and, when its launcher is gone, cleans up.

    launcher ──stdin: one JSON request a line──> keeper   holds network namespaces 0 (the switches), 1 ... n (devices)
             <──stdout: one JSON answer a line──          end of stdin: kills what is left, removes control groups

The namespaces have no names and live as long as the keeper, so nothing of a lab is ever visible in the machine's own
network, labs cannot collide, and the kernel takes veths, bridges and queues away with the namespace. Runs as a script
with the standard library alone; `sweep` also serves the reaping of what a killed keeper left.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

NEW_USER, NEW_NET = 0x10000000, 0x40000000
MARK = "PARTITA_LAB"


def started(pid: int) -> int:
    """When process `pid` started, in clock ticks since boot; 0 if it is not there or only its corpse is."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in "ZX" else int(fields[19])


def alive(process: tuple[int, int]) -> bool:
    """Whether the process (pid, start) is still that one."""
    return started(process[0]) == process[1] != 0


def sweep(run: str, groups: list[str], seconds: float = 5.0) -> None:
    """Kills every process of lab `run`, known by its environment and its control groups, and removes the groups."""
    end = time.monotonic() + seconds
    while True:
        found = members(run, groups)
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        groups = [group for group in groups if not _removed(group)]
        if not (found or groups) or time.monotonic() > end:
            return
        time.sleep(0.005)


def members(run: str, groups: list[str]) -> set[int]:
    """The live processes of lab `run`: those that inherited its mark and those in its control groups."""
    mark = f"{MARK}={run}".encode()
    found = set()
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if name.isdigit() and int(name) != os.getpid():
                with open(f"/proc/{name}/environ", "rb") as file:
                    if mark in file.read().split(b"\0"):
                        found.add(int(name))
    for group in groups:
        with contextlib.suppress(OSError), open(f"{group}/cgroup.procs") as file:
            found |= {int(line) for line in file if line.strip() != "0"}
    return found


def _removed(group: str) -> bool:
    try:
        os.rmdir(group)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _isolate(user: bool) -> None:
    """A user namespace in which this user is root. Raises OSError where the kernel refuses."""
    identity, group = os.geteuid(), os.getegid()
    if user:
        _unshare(NEW_USER)
        for name, line in (("setgroups", "deny"), ("uid_map", f"0 {identity} 1"), ("gid_map", f"0 {group} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(line)


def _unshare(kind: int) -> None:
    if ctypes.CDLL(None, use_errno=True).unshare(kind) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _enter(handle: int) -> None:
    if ctypes.CDLL(None, use_errno=True).setns(handle, NEW_NET) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _namespaces(many: int) -> list[int]:
    handles = []
    for _ in range(many):
        _unshare(NEW_NET)
        handles.append(os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC))
    return handles


def _run(handles: list[int], commands: list[list[Any]]) -> list[list[Any]]:
    """Starts every (namespace, argv, input) at once; the (exit code, errors) of each."""
    running = []
    for place, argv, given in commands:
        _enter(handles[place])
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        running.append((process, given))
    answers = []
    for process, given in running:
        errors = process.communicate(given.encode())[1]
        answers.append([process.returncode, errors.decode(errors="replace").strip()])
    return answers


def _counters(handle: int) -> dict[str, list[int]]:
    """Interface -> (bytes sent, bytes received) in a namespace."""
    _enter(handle)
    with open("/proc/self/net/dev") as file:
        rows = [line.split(":") for line in file if ":" in line]
    return {name.strip(): [int(values.split()[8]), int(values.split()[0])] for name, values in rows}


def serve(run: str, record: str, user: bool, many: int) -> None:
    """Answers requests until the launcher closes stdin or dies, then sweeps and removes the record file."""
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    groups: list[str] = []
    try:
        _isolate(user)
        handles = _namespaces(many)
        _answer({"handles": handles})
        for request in _requests():
            groups += request.get("groups", ())
            if "run" in request:
                _answer({"run": _run(handles, request["run"])})
            elif "count" in request:
                _answer({"count": _counters(handles[request["count"]])})
            else:
                _answer({})
    except OSError as error:
        _answer({"refused": error.strerror or str(error)})
    finally:
        sweep(run, groups)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(record)


def _requests() -> Iterator[dict[str, Any]]:
    """Ends with stdin or with the launcher, whichever is first: a forked child of the launcher may hold the pipe."""
    launcher = os.pidfd_open(os.getppid())
    poll = select.poll()
    for handle in (0, launcher):
        poll.register(handle, select.POLLIN)
    while launcher not in dict(poll.poll()):
        line = sys.stdin.readline()
        if not line.endswith("\n"):
            return
        yield json.loads(line)


def _answer(answer: dict[str, Any]) -> None:
    with contextlib.suppress(BrokenPipeError):
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2], sys.argv[3] == "user", int(sys.argv[4]))
