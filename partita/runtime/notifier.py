"""A condition variable that wakes only the threads whose wait is over.

Whoever changes something evaluates the predicates of all waiting threads for them. To wake a thread that must go back
to sleep costs both that thread and the one that computes: they pass Python's lock, and on one core the core, to and
fro, 0.1 ms each time; a step of three lanes did so ten times. Evaluating predicates costs as well, where a server has a
dozen lanes and hundreds of changes a step: a thread that names what it waits for is asked only when that changes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Container
from math import inf
from typing import Any, TypeVar

from partita.units import Seconds

T = TypeVar("T")


class Notifier(threading.Condition):
    """Like `threading.Condition`, but `notify_all` evaluates the predicates that were given to `wait_for`, and wakes
    only those threads whose predicate holds."""

    def __init__(self) -> None:
        super().__init__()
        self._asleep: dict[threading.Lock, tuple[Callable[[], Any], Container[str] | None]] = {}

    def wait_for(
        self, predicate: Callable[[], T], timeout: Seconds | None = None, of: Container[str] | None = None
    ) -> T:
        """Waits, the lock let go, until the predicate holds or `timeout` is over; the predicate's last value. Others
        call it too, with the lock held, when one of these names changes (None: whatever changes)."""
        until = inf if timeout is None else time.monotonic() + timeout
        while not (found := predicate()) and (left := until - time.monotonic()) > 0:
            own = threading.Lock()
            own.acquire()
            self._asleep[own] = predicate, of
            held = self._release_save()  # type: ignore[attr-defined]
            try:
                own.acquire(timeout=min(left, threading.TIMEOUT_MAX))
            finally:
                self._acquire_restore(held)  # type: ignore[attr-defined]
                self._asleep.pop(own, None)
        return found

    def notify_all(self, name: str = "") -> None:
        """Wakes whoever need not wait any more since what has this name changed ("": since anything did), also where
        asking fails, so that it fails there."""
        for own, (predicate, of) in tuple(self._asleep.items()):
            if name and of is not None and name not in of:
                continue
            try:
                over = predicate()
            except BaseException:
                over = True
            if over and self._asleep.pop(own, None):
                own.release()
