"""How ranks agree on a step at which to stop a run, or to let a rank in, although none knows how far the others are.

1 hold      the rank's lanes begin no further round; the rank says how many steps have begun
2 release   every rank learns the largest of these numbers, goes on to that step, and ends there
  resume    or goes on as before

rank 0   ####|..#|      begun 4, ends at 5
rank 1   #####|...|     begun 5, ends at 5
"""

from __future__ import annotations

import signal
import threading
from dataclasses import dataclass, field
from typing import Final

from partita.units import Seconds

STOPPING: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def stopping() -> tuple[signal.Signals, ...]:
    """The signals that stop a run: without SIGHUP where whoever started the process has it ignored, as nohup does."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return tuple(number for number in STOPPING if number != signal.SIGHUP or not ignored)


@dataclass
class Brake:
    """One rank's brake. Lanes ask it before each round, and wait while it is held; rounds before step `until` may begin
    all the same."""

    begun: int = 0
    held: int = 0
    until: int = 0
    end: int | None = None
    changed: threading.Condition = field(default_factory=threading.Condition)

    def passes(self, step: int, stop: int) -> bool:
        """Whether the round of steps `step` to `stop` may begin; it has then begun for all lanes."""
        with self.changed:
            if stop > self.begun:
                if (self.held and stop > self.until) or self.over(step):
                    return False
                self.begun = stop
            return True

    def hold(self) -> int:
        """Let no further round begin; returns how many steps have."""
        with self.changed:
            self.held += 1
            return self.begun

    def lift(self, until: int) -> None:
        """Let rounds begin before step `until`."""
        with self.changed:
            self.until = max(self.until, until)
            self.changed.notify_all()

    def resume(self) -> None:
        """Let rounds begin as before."""
        with self.changed:
            self.held -= 1
            self.changed.notify_all()

    def over(self, step: int) -> bool:
        """Whether the run ends before this step."""
        return self.end is not None and step >= self.end

    def release(self, end: int) -> None:
        """Let rounds begin before step `end`, and none after it."""
        with self.changed:
            self.held, self.end = self.held - 1, end
            self.changed.notify_all()


@dataclass
class RoundWait:
    """Waits until a round of steps `step` to `stop` may begin, or none begins any more."""

    brake: Brake
    step: int
    stop: int

    def ready(self) -> bool:
        """Whether `block` would return at once."""
        return self.brake.passes(self.step, self.stop) or self.brake.over(self.step)

    def block(self, timeout: Seconds) -> bool:
        """Wait until ready; False if `timeout` seconds passed before."""
        with self.brake.changed:
            return self.brake.changed.wait_for(self.ready, timeout)

    def __str__(self) -> str:
        return "the other ranks to say where to stop"
