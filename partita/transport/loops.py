"""gloo's threads, which carry messages, put off nobody who runs.

Who sends holds its connection's lock while it copies. gloo's own thread, woken by what comes on that connection, tries
the lock again and again, and where both share a processor it does so in place of the one that holds it:

woken as usual   a lane   |lock, co|                      |py|
                 gloo's            |try try try ... 1-3 ms|  |take|
as batch work    a lane   |lock, copy|
                 gloo's              |take|
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

NAME: Final = "gloo_tcp_loop"


def put_off_nobody() -> None:
    """Have those that this process has by now wait for their turn when they are woken (SCHED_BATCH); nothing where
    threads have no such policies, or the system refuses it."""
    if not hasattr(os, "SCHED_BATCH"):
        return
    for thread in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # one that has ended since
            if (thread / "comm").read_text().strip() == NAME:
                os.sched_setscheduler(int(thread.name), os.SCHED_BATCH, os.sched_param(0))
