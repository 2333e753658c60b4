"""The launcher's end of the keeper: starts it, sends it requests, ends it."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from partita.errors import RunError
from partita.lab import keeper
from partita.lab.record import clear


class NamespacesRefused(Exception):
    """The kernel or the machine does not allow namespaces; the text says why."""


@dataclass
class KeeperClient:
    """A keeper at work for lab `run`; `handles` are its open network namespaces, 0 the switches'."""

    run: str
    record: Path
    user: bool
    process: subprocess.Popen[str]
    handles: tuple[int, ...] = ()
    lock: threading.Lock = field(default_factory=threading.Lock)

    def paths(self) -> tuple[str, ...]:
        """The paths of its network namespaces."""
        return tuple(f"/proc/{self.process.pid}/fd/{handle}" for handle in self.handles)

    def entrance(self, place: int) -> list[tuple[str, int]]:
        """What a process enters to be in namespace `place`: (path, kind of namespace) in order."""
        if not self.handles:
            return []
        user = [(f"/proc/{self.process.pid}/ns/user", keeper.NEW_USER)] if self.user else []
        return [*user, (self.paths()[place], keeper.NEW_NET)]

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """The keeper's answer. Raises NamespacesRefused with its reason, RunError where it is gone."""
        with self.lock:
            self._send(request)
            return self._answer()

    def carry_out(self, tool: str, batches: tuple[tuple[str, ...], ...]) -> None:
        """Runs the lines of each namespace through `tool` (ip or tc), all at once. Raises NamespacesRefused."""
        work = [(i, [tool, "-batch", "-"], "\n".join(lines) + "\n") for i, lines in enumerate(batches) if lines]
        for code, errors in self.ask({"run": work})["run"]:
            if code:
                raise NamespacesRefused(f"{Path(tool).name} said: {' '.join(errors.split())}")

    def release(self) -> None:
        """Lets the keeper sweep the lab and waits until it is done; sweeps in its place if that was killed."""
        if self.process.stdin:
            self.process.stdin.close()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.process.returncode:
            clear(self.record)
        if self.process.stdout:
            self.process.stdout.close()

    def _send(self, request: dict[str, Any]) -> None:
        assert self.process.stdin
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        except (BrokenPipeError, ValueError):
            raise self.gone() from None

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            raise self.gone()
        answer: dict[str, Any] = json.loads(line)
        if "refused" in answer:
            raise NamespacesRefused(answer["refused"])
        return answer

    def gone(self) -> RunError:
        """For a keeper that has ended, with which the links between its namespaces go."""
        return RunError(
            f"the process that holds lab {self.run} (process {self.process.pid}) is gone, and its links with it; start "
            "the run again"
        )


def start_keeper(run: str, record: Path, kind: str, namespaces: int) -> KeeperClient:
    """A keeper with that many network namespaces; `kind` 'user' puts them into a user namespace of their own.

    Raises NamespacesRefused where the kernel does not allow it.
    """
    argv = [sys.executable, "-I", "-S", keeper.__file__, run, str(record), kind, str(namespaces)]
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        argv, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True, start_new_session=True
    )
    client = KeeperClient(run, record, kind == "user", process)
    try:
        client.handles = tuple(client._answer()["handles"])
    except BaseException:
        client.release()
        raise
    return client
