"""What ranks that may lose one of them learn of each other through the store, for `admission` and `deaths`.

over/3           rank 3's run has ended
deaths, returns  counters of what any rank may do at any time, at which all look now and then
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

from partita.units import Seconds


def leave(store: Any, rank: int) -> None:
    """A rank's run has ended."""
    store.set(f"over/{rank}", "")


def has_left(store: Any, *ranks: int) -> bool:
    """Whether the runs of all these ranks have ended."""
    return bool(store.check([f"over/{rank}" for rank in ranks]))


def changes(counter: Callable[[], int], over: threading.Event, every: Seconds) -> Iterator[None]:
    """Once for each look, one `every` so many seconds, at which a counter that begins at 0 has moved; until the run is
    `over`."""
    before = 0
    while not over.wait(every):
        now = counter()
        if now != before:
            before = now
            yield
