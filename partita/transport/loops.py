"""gloo's threads, which carry messages from rank to rank, put off nobody who runs.

Who sends holds its connection's lock while it copies. gloo's own thread, woken by what comes on that connection, tries
the lock again and again, and where both share a processor it does so in place of the one that holds it:

woken as usual   a lane   |lock, co|                      |py|
                 gloo's            |try try try ... 1-3 ms|  |take|
as batch work    a lane   |lock, copy|
                 gloo's              |take|

Not so the threads of collectives: these have much to copy and to add beside computing, which would hold them up.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

NAME: Final = "gloo_tcp_loop"


@contextmanager
def woken_in_turn() -> Iterator[None]:
    """A context whose connections have threads that wait for their turn when they are woken (SCHED_BATCH); as usual
    where the system has no such policy, or refuses it."""
    before = loops()
    yield
    for thread in loops() - before:
        with suppress(OSError):  # refused, or ended since: it is woken as usual
            os.sched_setscheduler(thread, os.SCHED_BATCH, os.sched_param(0))


def loops() -> frozenset[int]:
    """The numbers of gloo's threads in this process; none where threads have no policies."""
    found = list[int]()
    for thread in Path("/proc/self/task").iterdir() if hasattr(os, "SCHED_BATCH") else ():
        with suppress(OSError):  # one that has ended since
            if (thread / "comm").read_text().strip() == NAME:
                found.append(int(thread.name))
    return frozenset(found)
