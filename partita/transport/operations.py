"""Operations of torch.distributed that are under way, each as a Pending: what a lane waits for."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any, Final

import torch

from partita.errors import RunError
from partita.transport.transport import BlockingMessage, PeerGone, Pending
from partita.transport.ways import limit_of
from partita.units import Seconds

ASK: Final[Seconds] = 20e-6  # between two looks at a stream
LATE: Final = ("imed out", "timeout")  # gloo's words: of what is late, and of what else was on its connection


def waited(work: Any, timeout: Seconds) -> bool:
    """Wait for an operation of torch.distributed; False if `timeout` seconds passed before. Raises its RuntimeError if
    the connection broke."""
    try:
        work.wait(limit_of(timeout))
    except RuntimeError as error:
        if any(words in str(error) for words in LATE):
            return False
        raise
    return True


def broken(error: RuntimeError) -> RunError:
    """What is raised on this rank once a connection broke."""
    why = " ".join(str(error).split())
    return RunError(f"a connection to another rank broke ({why[:160]}); look at which rank failed first")


@dataclass
class Work:
    """A started operation of torch.distributed.

    gloo's messages never say that they are complete until they are waited for, so who asks `ready` starts a waiter.
    """

    work: Any
    waiter: threading.Thread | None = None
    failure: RuntimeError | None = None

    def ready(self) -> bool:
        """Whether `block` would return at once. Raises RunError if the connection broke."""
        if self.waiter is None:
            self.waiter = threading.Thread(target=self._wait, daemon=True)
            self.waiter.start()
        over = not self.waiter.is_alive()
        if self.failure is not None:
            raise broken(self.failure)
        return over

    def _wait(self) -> None:
        try:
            self.work.wait()
        except RuntimeError as error:
            self.failure = error

    def block(self, timeout: Seconds) -> bool:
        """Wait until ready; False if `timeout` seconds passed before. Raises RunError if the connection broke."""
        if self.waiter is not None:  # of two that wait for one operation of gloo, one never ends
            self.waiter.join(timeout)
            return self.ready()
        try:
            return waited(self.work, timeout)
        except RuntimeError as error:
            raise broken(error) from error


@dataclass
class StreamCollective:
    """A collective in a stream of NCCL. The thread of its lane polls it: if the computing stream waited for it,
    everything launched there afterwards would wait as well."""

    work: Any

    def ready(self) -> bool:
        """Whether `block` would return at once."""
        return bool(self.work.is_completed())

    def block(self, timeout: Seconds) -> bool:
        """Wait until ready; False if `timeout` seconds passed before."""
        until = time.monotonic() + timeout
        while not self.work.is_completed():
            if time.monotonic() > until:
                return False
            time.sleep(ASK)
        self.work.wait()  # over by now: gives back what it held
        return True


@dataclass
class StagedMessage:
    """A message to an accelerator: received into host memory, then copied to the device."""

    pending: Pending
    host: torch.Tensor
    into: torch.Tensor
    copied: bool = False

    def ready(self) -> bool:
        """Whether `block` would return at once."""
        return self.copied or (self.pending.ready() and self._copy())

    def block(self, timeout: Seconds) -> bool:
        """Wait until ready; False if `timeout` seconds passed before."""
        return self.copied or (self.pending.block(timeout) and self._copy())

    def _copy(self) -> bool:
        self.into.copy_(self.host)
        self.copied = True
        return True


@dataclass
class LinkedMessage(BlockingMessage):
    """A message over a link of its own to a peer that may die; `block` raises PeerGone if the link breaks."""

    work: Any
    peer: int

    def block(self, timeout: Seconds) -> bool:
        """Wait until ready; False if `timeout` seconds passed before."""
        try:
            return waited(self.work, timeout)
        except RuntimeError as error:
            raise PeerGone(f"rank {self.peer} is gone ({error})", rank=self.peer) from error
