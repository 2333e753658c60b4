"""A Condition that wakes only those whose wait is over.

Whoever changes something asks in the stead of all that wait for it. To wake a thread that has to go back to sleep costs
both that thread and the one that goes on computing: they hand Python's lock, and on one core the core, to each other
and back, 0.1 ms each time, and a step of three lanes did so ten times. Asking costs as well, where a server has a dozen
lanes and hundreds of changes a step: who says what it waits for is asked only when that changes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Container
from typing import Any, TypeVar

from partita.units import Seconds

T = TypeVar("T")
Waits = tuple[Callable[[], Any], threading.Condition, Container[str] | None]


class Bell(threading.Condition):
    """`notify_all` is `threading.Condition`'s, but that it asks what `wait_for` was given first."""

    def __init__(self) -> None:
        super().__init__()
        self._waiting: list[Waits] = []

    def wait_for(
        self, predicate: Callable[[], T], timeout: Seconds | None = None, of: Container[str] | None = None
    ) -> T:
        """Waits, the lock let go, until the predicate holds or `timeout` is over; the predicate's last value. Others
        call it too, with the lock held, when one of these names changes (None: whatever changes)."""
        if found := predicate():
            return found
        waits = predicate, threading.Condition(self._lock), of  # type: ignore[attr-defined]
        self._waiting.append(waits)
        try:
            return waits[1].wait_for(predicate, timeout)
        finally:
            self._waiting.remove(waits)

    def notify_all(self, name: str = "") -> None:
        """Wakes whoever need not wait any more since what has this name changed ("": since anything did), also where
        asking fails, so that it fails there."""
        for predicate, own, of in tuple(self._waiting):
            if name and of is not None and name not in of:
                continue
            try:
                over = predicate()
            except BaseException:
                over = True
            if over:
                own.notify()
