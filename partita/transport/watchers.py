"""Threads that wait for one message each, and then for another.

A server posts hundreds of Receives in a step. To start a thread for each takes more than the message's own calls;
`threading` would also let who starts one wait until it runs. So a thread that has seen its message come takes the next.

watch(a)  watch(b)          thread 0   a------|   c-----|
                 watch(c)   thread 1   b-----------|
"""

from __future__ import annotations

from _thread import start_new_thread
from collections.abc import Callable
from queue import SimpleQueue
from threading import Lock
from typing import Final

Wait = Callable[[], None]


class Watchers:
    """As many threads as calls have been under way at once. Calls never raise."""

    def __init__(self) -> None:
        self._calls = SimpleQueue[Wait]()
        self._lock, self._idle = Lock(), 0

    def watch(self, call: Wait) -> None:
        """Let a thread make the call."""
        with self._lock:
            fresh = not self._idle
            self._idle -= not fresh
        if fresh:
            start_new_thread(self._serve, ())
        self._calls.put(call)

    def _serve(self) -> None:
        while True:
            self._calls.get()()
            with self._lock:
                self._idle += 1


watch: Final = Watchers().watch
