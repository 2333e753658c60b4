"""The processor time that other work on this machine used while something was timed."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Final

import psutil

from partita.units import Seconds

BEARABLE: Final = 0.1  # of one core; times taken beside more are not kept on disk
HEAVY: Final = 0.3  # of one core; what links cost takes most of a minute, and is timed again only beside more


class BackgroundLoad:
    """Counts, from its construction on, the core-seconds that other processes used than this one and its descendants;
    time stolen by a hypervisor counts too. The machine's counters tick every 10 ms."""

    def __init__(self) -> None:
        self.since, self.busy, self.own = time.monotonic(), busy_seconds(), own_seconds()

    def cores(self) -> float:
        """How many cores others have used on average; 0 where too little time has passed to tell."""
        seconds = time.monotonic() - self.since
        return max(busy_seconds() - self.busy - (own_seconds() - self.own), 0.0) / seconds if seconds > 0.5 else 0.0


def busy_seconds() -> Seconds:
    """Core-seconds of all work since the machine was started."""
    times = psutil.cpu_times()
    idle = times.idle + getattr(times, "iowait", 0.0)
    return float(sum(times[:8]) - idle)  # beyond the eighth, guests' time is counted in user time already


def own_seconds() -> Seconds:
    """Core-seconds of this process and of its descendants, the dead ones that were waited for included."""
    here = psutil.Process()
    total = 0.0
    for process in [here, *here.children(recursive=True)]:
        with suppress(psutil.Error):
            total += sum(process.cpu_times()[:4])
    return total
