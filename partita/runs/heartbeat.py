"""Reports of a rank while nothing moves: where each of its lanes is, and the state of its connections, once a second.

From these reports and the Program the launcher finds the rank that holds the run up (program/stall.py).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Final

from partita.errors import reported
from partita.runtime.rank import Rank
from partita.transport.flows import flows_of
from partita.units import Seconds

REPORT_INTERVAL: Final[Seconds] = 1.0


@contextmanager
def at_work(report: Callable[[dict[str, Any]], None], event: dict[str, Any]) -> Iterator[None]:
    """A context of work of which nothing else is heard: a thread reports `event` every second."""
    over = threading.Event()

    def beat() -> None:
        while not over.wait(REPORT_INTERVAL):
            report(event)

    threading.Thread(target=beat, name="at work", daemon=True).start()
    try:
        yield
    finally:
        over.set()


class Heartbeat:
    """A context in which a thread reports `{"at": ...}` in every second in which no instruction has finished, and
    `{"failed": ...}` once a lane has failed while another one waits for a message that cannot be given up."""

    def __init__(self, rank: Rank, report: Callable[[dict[str, Any]], None]) -> None:
        self.rank, self.report = rank, report
        self.over = threading.Event()

    def __enter__(self) -> None:
        threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.over.set()

    def _beat(self) -> None:
        before, port, failure = -1, int(os.environ.get("MASTER_PORT", "0")), None
        while not self.over.wait(REPORT_INTERVAL):
            if failure is not None:
                self.report({"failed": reported(failure)})
            done, failure = sum(self.rank.board.done.copy().values()), self.rank.board.failure
            if done == before:
                self.report({"at": self.stand() | {"flows": flows_of(port)}})
            before = done

    def stand(self) -> dict[str, Any]:
        """The positions of the lanes, as plain data (see program/stall.py)."""
        now = time.perf_counter()
        places = [
            [lane, name, round, now - since, meets] for name, (lane, round, since, meets) in self.rank.at.copy().items()
        ]
        return {"places": places, "done": self.rank.board.done.copy(), "first_step": self.rank.first_step}
