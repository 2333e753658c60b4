r"""A lane of a worker that carries out calls instead of acts: what a message costs in a micro-benchmark is then what it
costs in a worker, which tells lanes of what is done, wakes those that wait, and notes spans. (In a thread of its own, a
call took a third of that.)

this thread   asks ---- works, or waits for the lane --------- hears
the lane            \ starts the call - waits for its end ---/
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from types import SimpleNamespace
from typing import Any, Final, TypeAlias

from partita.errors import RunHung
from partita.program.instruction import After, Instruction, Scale
from partita.runtime.device import Clock
from partita.runtime.rank import Board, Rank
from partita.runtime.worker import instance
from partita.transport.transport import Pending, Steps
from partita.units import Seconds

MESSAGE_TIMEOUT: Final[Seconds] = 60.0
ASKED: Final = "asked"
CARRIED: Final = Instruction("carried", Scale("bucket"), "extra", after=(After(ASKED),))
Call: TypeAlias = Callable[[], Pending | Steps | None]


class Unplanned(Rank):
    """A rank of no Program: what a lane needs to carry out instructions that touch none of a rank's state."""

    def __init__(self) -> None:
        role: Any = SimpleNamespace(causes={CARRIED.name: (ASKED,)})
        self.rank, self.role, self.board, self.clock = 0, role, Board(), Clock()
        self.spans, self.at, self.spare = [], {}, frozenset()
        self.early, self.then = {}, {}


class Left(Exception):
    """The lane is left: its thread ends."""


class ExtraLane:
    """The lane, in a thread of its own that ends with the context; private to one micro-benchmark."""

    def __init__(self) -> None:
        self.rank, self.calls = Unplanned(), list[Call]()
        self.board = self.rank.board
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def __enter__(self) -> ExtraLane:
        return self

    def __exit__(self, *error: object) -> None:
        self.begin(_left)

    def begin(self, call: Call) -> None:
        """Let the lane carry out `call`."""
        self.calls.append(call)
        self.board.finish(ASKED, len(self.calls) - 1)

    @property
    def busy(self) -> bool:
        """Whether what was begun is not done; raises what it raised."""
        if self.board.failure is not None:
            raise self.board.failure
        return self.board.done.get(CARRIED.name, 0) < len(self.calls)

    def carry_out(self, call: Call) -> None:
        """Let the lane carry out `call`, and wait until it has; raises what it raised."""
        self.begin(call)
        self.wait()

    def wait(self) -> None:
        """Wait until what was begun is done; raises what it raised."""
        with self.board.changed:
            self.board.changed.wait_for(lambda: not self.busy, of=(CARRIED.name,))

    def _run(self) -> None:
        try:
            while True:
                self._carried(len(self.rank.spans))
        except Left:
            return
        except BaseException as error:
            self.board.fail(error)

    def _carried(self, round: int) -> None:
        for pending in instance(self.rank, CARRIED, round, lambda round: True, begin=self._begin):
            if not pending.block(MESSAGE_TIMEOUT):
                raise RunHung(f"a timed message did not come within {MESSAGE_TIMEOUT:.0f} s; look which rank is gone")

    def _begin(self, rank: Rank, instruction: Instruction, round: int) -> Pending | Steps | None:
        found = self.calls[round]()
        return found if isinstance(found, Generator | Pending) else None


def _left() -> None:
    raise Left
