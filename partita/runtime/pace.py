"""Pauses of computing that leave a limited processor to messages, while the messages are the bottleneck.

A processor quota freezes the whole process once it is used up, including its message threads: half a core means 10 ms
of computing and then 10 ms in which nothing is sent or received, so that a ring of four ranks is frozen most of the
time. If the last round waited for messages for longer than this costs, computing pauses between operators while
messages are in flight, so that the quota is never used up. Posted receives do not count: a server's lanes always have
some posted.

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
    """The pacing of one rank. `cores` is its quota; with 0, or 1 and more, there is none and nothing is paced."""

    cores: float = 0.0
    in_flight: int = 0
    waited: Seconds = 0.0
    on: bool = False
    _used: dict[int, Seconds] = field(default_factory=dict)
    _round: Seconds = 0.0

    def yield_core(self) -> None:
        """Called between operators: if messages are in flight, pause so long that this thread uses two thirds of the
        quota."""
        if not self.on or not self.in_flight:
            return
        me, now = threading.get_ident(), time.thread_time()
        spent, self._used[me] = now - self._used.get(me, now), now
        if GRAIN < spent < 1.0:
            time.sleep(spent * (1 / (SHARE * self.cores) - 1))

    def round_ends(self) -> None:
        """Decide whether to pace the next round, from how long this one waited for messages."""
        now = time.perf_counter()
        length, self._round = now - self._round, now
        self.on = 0 < self.cores < 1 and self.waited > WAITED * length
        self.waited, self._used = 0.0, {threading.get_ident(): time.thread_time()}
