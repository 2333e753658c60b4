"""SIGTERM, SIGINT and SIGHUP during a run: the ranks agree on where to stop, so that a last checkpoint can be written.

The first signal starts this, a second ends the process at once. A thread listens, since the main thread may be deep in
a message.
"""

from __future__ import annotations

import os
import signal
import threading
from types import TracebackType
from typing import Final

from partita.runtime.brake import Brake, stopping
from partita.transport.messages import come, wait_for
from partita.units import Seconds

AGREEMENT_TIMEOUT: Final[Seconds] = 10.0


class Halt:
    """A context in which signals stop the run through `brake`; `number` is the signal that came, 0 before. Enter it
    in the main thread, on all ranks of the `world`."""

    def __init__(self, brake: Brake, rank: int, world: int) -> None:
        self.brake, self.rank, self.world, self.number = brake, rank, world, 0

    def __enter__(self) -> Halt:
        self.hears, self.speaks = os.pipe()
        os.set_blocking(self.speaks, False)
        self.before = {number: signal.signal(number, lambda *_: None) for number in stopping()}
        self.woken = signal.set_wakeup_fd(self.speaks)
        threading.Thread(target=self._listen, name="halt", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.set_wakeup_fd(self.woken)
        for number, handler in self.before.items():
            signal.signal(number, handler)
        os.close(self.speaks)

    def _listen(self) -> None:
        for number in iter(lambda: os.read(self.hears, 1), b""):
            if number[0] not in self.before:
                continue
            if self.number and number[0] == signal.SIGHUP:  # the shell sends it, and the kernel once more
                continue
            if self.number:
                os._exit(128 + number[0])
            self.number = number[0]
            threading.Thread(target=self._agree, name="agree", daemon=True).start()
        os.close(self.hears)

    def _agree(self) -> None:
        end = agreed(self.brake.hold(), self.rank, self.world)
        if end < 0:
            os._exit(128 + self.number)
        self.brake.release(end)


def agreed(begun: int, rank: int, world: int) -> int:
    """The largest `begun` of all ranks, exchanged through the store; -1 if some rank does not answer."""
    if world == 1:
        return begun
    come("halt", rank, str(begun))
    words = wait_for("halt", range(world), AGREEMENT_TIMEOUT)
    return max(map(int, words), default=-1)
