"""How a run stops early at a step on which all its ranks agree, although none of them knows how far the others are.

1 hold      the rank's lanes begin no further round; it says how many steps it has begun
2 release   every rank hears the largest of these numbers, goes on to there, and ends

rank 0   ####|..#|      begun 4, ends at 5
rank 1   #####|...|     begun 5, ends at 5
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from partita.units import Seconds


@dataclass
class Brake:
    """One rank's; its lanes ask it before each round, and wait for it as a Pending while it holds."""

    begun: int = 0
    held: bool = False
    end: int | None = None
    changed: threading.Condition = field(default_factory=threading.Condition)

    def passes(self, step: int, stop: int) -> bool:
        """Whether the round of steps `step` to `stop` may begin; it has then begun for all lanes."""
        with self.changed:
            if stop > self.begun:
                if self.held or (self.end is not None and step >= self.end):
                    return False
                self.begun = stop
            return True

    def hold(self) -> int:
        """Let no further round begin; returns how many steps have."""
        with self.changed:
            self.held = True
            return self.begun

    def release(self, end: int) -> None:
        """Let rounds begin before step `end`, and none after it."""
        with self.changed:
            self.held, self.end = False, end
            self.changed.notify_all()

    def ready(self) -> bool:
        return self.end is not None

    def block(self, timeout: Seconds) -> bool:
        with self.changed:
            return self.changed.wait_for(self.ready, timeout)

    def __str__(self) -> str:
        return "the other ranks to say where to stop"
