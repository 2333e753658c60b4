"""What a lane waits for: that an instance may start, or that a message has arrived."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from partita.program.instruction import Instruction
from partita.runtime.gates import passes_gate
from partita.runtime.rank import Board, Rank
from partita.transport.transport import Pending
from partita.transport.watchers import watch
from partita.units import Seconds

FOREVER: Final[Seconds] = 1e7


@dataclass(frozen=True)
class StartWait:
    """Waits until an instance may start: until enough of its predecessors are done or, for a Receive that is `posted`,
    until its message has arrived. An instruction that is left out while a peer is away never starts."""

    rank: Rank
    instruction: Instruction
    round: int
    posted: Posted | None = None

    def open(self) -> bool:
        """Whether the instance may start, by what is known already."""
        if self.instruction.name in self.rank.board.void:
            return False
        if self.posted is not None:
            return self.posted.arrived > 0
        return may_start(self.rank, self.instruction, self.round)

    def since(self) -> int:
        """The moment since which it may start."""
        if self.posted is not None:
            return self.posted.arrived
        board, round = self.rank.board, self.round
        moments = sorted(board.since(after, round) for after in self.instruction.after if board.has(after, round))
        return moments[: self.instruction.need or None][-1] if moments else 0

    def ready(self) -> bool:
        """Whether `block` would return at once."""
        if self.posted is not None:
            self.posted.ask()
        board = self.rank.board
        return board.failure is not None or self.instruction.name in board.void or self.open()

    def block(self, timeout: Seconds) -> bool:
        """Wait until ready; False if `timeout` seconds passed before."""
        if self.posted is not None:
            self.posted.watch()
        with self.rank.board.changed:
            causes = self.rank.role.causes[self.instruction.name]
            return self.rank.board.changed.wait_for(self.ready, timeout, causes)

    def __str__(self) -> str:
        of = f"{self.instruction.name} of round {self.round}"
        if self.posted is not None:
            return f"the message of {of}"
        return f"{', '.join(self._missing())} before {of}"

    def _missing(self) -> list[str]:
        return [a.name for a in self.instruction.after if not self.rank.board.has(a, self.round)]

    def missing_lanes(self) -> list[str]:
        """The lanes of the predecessors that are not done."""
        return [self.rank.role.on_name[name].lane for name in self._missing()] if self.posted is None else []


@dataclass
class Posted:
    """A Receive, by `name`, that was started before its lane came to it, so that the lane can take whichever message
    arrives first.

    If one thread runs all lanes, it asks each Receive in turn. If each lane has a thread, it cannot: gloo says that a
    message is complete only to who waits for it. Then a thread of its own waits for each posted Receive, and wakes the
    lanes (`transport/watchers.py`).
    """

    pending: Pending
    board: Board
    name: str = ""
    watched: bool = False
    arrived: int = 0

    def ask(self) -> None:
        """Look whether the message has arrived, unless a thread waits for it."""
        if not self.watched and not self.arrived and self.pending.ready():
            self._arrives()

    def watch(self) -> None:
        """Let a thread wait for the message."""
        if not self.watched and not self.arrived:
            self.watched = True
            watch(self.wait)

    def wait(self) -> None:
        """Wait for the message, in a thread that may wait, and tell the lanes of it, or of why it does not come."""
        try:
            came = self.pending.block(FOREVER)
        except BaseException as error:
            self.board.fail(error)
            return
        if came:  # not where another message was late, on which gloo closes the connection: who waited for that tells
            self._arrives()

    def _arrives(self) -> None:
        """Set `arrived` first: lanes are woken only if it is set when they are told."""
        with self.board.changed:
            self.arrived = self.board.moment + 1
            self.board.happens(self.name)


def may_start(rank: Rank, instruction: Instruction, round: int) -> bool:
    """Whether enough of an instance's predecessors are done, and its gate, if it has one, is open."""
    return arrived(rank, instruction, round) and passes_gate(rank, instruction, round, arrived)


def arrived(rank: Rank, instruction: Instruction, round: int) -> bool:
    """Whether enough of an instance's predecessors are done; those that are left out do not count."""
    board, after = rank.board, instruction.after
    if board.void or board.missing:
        after = tuple(one for one in after if not board.lacks(one, round))
    if instruction.need in (0, len(after)):
        return all(board.has(one, round) for one in after)
    return sum(board.has(one, round) for one in after) >= min(instruction.need, len(after))


def skips(rank: Rank, instruction: Instruction, round: int) -> bool:
    """Whether an instance that may start is late work, which is skipped."""
    return instruction.unless is not None and rank.board.has(instruction.unless, round)
