"""Computing that leaves the processor to messages while these are what everybody waits for.

A processor quota freezes the whole process once it is used up, its message threads too: half a core is 10 ms of
computing, then 10 ms in which nothing is sent or received, and a ring of four is frozen most of the time. So where the
last round waited for messages longer than this costs, computing pauses between operators while any fly and never uses
its quota up. What is asked for may not even be sent, and does not count: a server's lanes always ask for something.

    quota 0.5   computing ██████░░░░██████░░░░   link  ▔▔▔▔▔▔____▔▔▔▔▔▔____
    paced       computing ██░░░░██░░░░██░░░░██   link  ▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Final

from partita.units import Seconds

GRAIN: Final[Seconds] = 0.001
SHARE: Final = 2 / 3
WAITED: Final = 0.5


@dataclass
class Pace:
    """`cores` is the rank's quota (0 or 1 and more: none, so nothing is ever paced); private to one rank."""

    cores: float = 0.0
    flying: int = 0
    waited: Seconds = 0.0
    on: bool = False
    _used: dict[int, Seconds] = field(default_factory=dict)
    _round: Seconds = 0.0

    def yield_core(self) -> None:
        """Between operators: pause so long that this thread uses two thirds of the quota, if messages fly."""
        if not self.on or not self.flying:
            return
        me, now = threading.get_ident(), time.thread_time()
        spent, self._used[me] = now - self._used.get(me, now), now
        if GRAIN < spent < 1.0:
            time.sleep(spent * (1 / (SHARE * self.cores) - 1))

    def round_ends(self) -> None:
        """Decide from how long computing waited for messages in this round whether to pace the next one."""
        now = time.perf_counter()
        length, self._round = now - self._round, now
        self.on = 0 < self.cores < 1 and self.waited > WAITED * length
        self.waited, self._used = 0.0, {threading.get_ident(): time.thread_time()}
