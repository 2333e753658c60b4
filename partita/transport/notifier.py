"""A condition variable that wakes only the threads whose wait is over.

The thread that changes something evaluates the predicates of all waiting threads. Waking a thread that must go back to
sleep costs both threads: they pass Python's lock, and on one core the core, to and fro, 0.1 ms each time, and a step of
three lanes did so ten times. Evaluating predicates costs time as well if a server has a dozen lanes and hundreds of
changes in a step, so a thread may name what it waits for, and is then tested only when that changes.
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
    """Like `threading.Condition`, but `notify_all` evaluates the predicates given to `wait_for`, and wakes only
    threads whose predicate holds; `asleep` has those that wait, each by the lock that it sleeps on."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # entered by itself in half the time
        super().__init__(self.lock)
        self.asleep: dict[threading.Lock, tuple[Callable[[], Any], Container[str] | None]] = {}

    def wait_for(
        self, predicate: Callable[[], T], timeout: Seconds | None = None, of: Container[str] | None = None
    ) -> T:
        """Wait, with the lock released, until the predicate holds or `timeout` seconds have passed; its last value.
        Other threads call the predicate as well, with the lock held, when one of the names in `of` changes (None:
        any name)."""
        until = inf if timeout is None else time.monotonic() + timeout
        while not (found := predicate()) and (left := until - time.monotonic()) > 0:
            own = threading.Lock()
            own.acquire()
            self.asleep[own] = predicate, of
            held = self._release_save()  # type: ignore[attr-defined]
            try:
                own.acquire(timeout=min(left, threading.TIMEOUT_MAX))
            finally:
                self._acquire_restore(held)  # type: ignore[attr-defined]
                self.asleep.pop(own, None)
        return found

    def notify_all(self, name: str = "") -> None:
        """Wake the threads whose predicate holds after a change of `name` ("": of anything). A predicate that raises
        wakes its thread too, so that it raises there."""
        for own, (predicate, of) in tuple(self.asleep.items()):
            if name and of is not None and name not in of:
                continue
            try:
                over = predicate()
            except BaseException:
                over = True
            if over and self.asleep.pop(own, None):
                own.release()
