"""Threads that wait: one for every call under way, and no more."""

from __future__ import annotations

import threading
import weakref
from queue import SimpleQueue

from partita.transport.watchers import Watchers


class Held:
    """Something that a call holds."""


def test_calls_that_wait_for_each_other_are_under_way_at_once() -> None:
    watchers, together = Watchers(), threading.Barrier(6)
    for _ in range(5):
        watchers.watch(lambda: together.wait(30) and None)
    together.wait(30)


def test_a_thread_takes_the_next_call_when_it_is_done() -> None:
    watchers, seen = Watchers(), SimpleQueue[int]()
    idents = set()
    for _ in range(50):
        watchers.watch(lambda: seen.put(threading.get_ident()))
        idents.add(seen.get(timeout=30))
    assert len(idents) < 10


def test_what_a_call_held_is_freed_when_it_is_done() -> None:
    watchers, done, held = Watchers(), SimpleQueue[None](), Held()
    freed = threading.Event()
    weakref.finalize(held, freed.set)
    watchers.watch(lambda held=held: done.put(None))  # type: ignore[misc]
    done.get(timeout=30)
    del held
    assert freed.wait(30)
