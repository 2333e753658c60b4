"""SIGTERM, SIGINT and SIGHUP at the launcher of a run that can be stopped: workers hear of the first, a second ends
all.

launcher   TERM ──> workers   agree on a step, write a checkpoint, answer
           TERM again         as without this

However long the checkpoint takes: workers that no longer get anywhere are found as in any run.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType

from partita.lab.worker import Worker
from partita.runtime.brake import stopping


@dataclass
class ForwardedSignal:
    """The signal that came; 0 before it."""

    number: int = 0


@contextmanager
def forwarding(workers: Sequence[Worker], wanted: bool) -> Iterator[ForwardedSignal]:
    """Pass the first signal on; a second one ends this process as without it. Does nothing unless `wanted`, nor outside
    the main thread, since other threads have no signals."""
    heard = ForwardedSignal()
    if not wanted or threading.current_thread() is not threading.main_thread():
        yield heard
        return
    before = {number: signal.getsignal(number) for number in stopping()}

    def stop(number: int, frame: FrameType | None) -> None:
        if heard.number and number == signal.SIGHUP:  # the shell sends it, and the kernel once more
            return
        if heard.number:
            restore()
            os.kill(os.getpid(), number)
            return
        heard.number = number
        for worker in workers:
            with suppress(ProcessLookupError):
                os.kill(worker.process.pid, signal.SIGTERM)

    def restore() -> None:
        hung_up = heard.number == signal.SIGHUP  # it may come again while this process ends
        for number, handler in before.items():
            signal.signal(number, signal.SIG_IGN if hung_up and number == signal.SIGHUP else handler)

    for number in before:
        signal.signal(number, stop)
    try:
        yield heard
    finally:
        restore()
