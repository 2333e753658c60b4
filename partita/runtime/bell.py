"""A Condition that wakes only those whose wait is over.

Whoever changes something asks in the stead of all that wait. To wake a thread that has to go back to sleep costs both
that thread and the one that goes on computing: they hand Python's lock, and on one core the core, to each other and
back, 0.1 ms each time, and a step of three lanes did so ten times.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from partita.units import Seconds

T = TypeVar("T")


class Bell(threading.Condition):
    """`notify_all` is `threading.Condition`'s, but that it asks what `wait_for` was given first."""

    def __init__(self) -> None:
        super().__init__()
        self._waiting: list[tuple[Callable[[], Any], threading.Condition]] = []

    def wait_for(self, predicate: Callable[[], T], timeout: Seconds | None = None) -> T:
        """Waits, the lock let go, until the predicate holds or `timeout` is over; the predicate's last value. Others
        call it too, with the lock held."""
        if found := predicate():
            return found
        waits = predicate, threading.Condition(self._lock)  # type: ignore[attr-defined]
        self._waiting.append(waits)
        try:
            return waits[1].wait_for(predicate, timeout)
        finally:
            self._waiting.remove(waits)

    def notify_all(self) -> None:
        """Wakes whoever need not wait any more, also where asking fails, so that it fails there."""
        for predicate, own in tuple(self._waiting):
            try:
                over = predicate()
            except BaseException:
                over = True
            if over:
                own.notify()
