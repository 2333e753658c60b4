"""What a lane waits for before it goes on: an instance whose predecessors are done, or a message that is there."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from partita.program.instruction import Instruction
from partita.runtime.passage import goes_through
from partita.runtime.rank import Board, Rank
from partita.runtime.transport import Pending
from partita.units import Seconds

FOREVER: Final[Seconds] = 1e7


@dataclass(frozen=True)
class Turn:
    """Waits until one of these (instruction, round) may start; a Receive among `posted`, until its message is there.
    Of what is left out there is nothing to wait for."""

    rank: Rank
    candidates: tuple[tuple[Instruction, int], ...]
    posted: Mapping[Instruction, Posted]

    def open(self) -> list[tuple[Instruction, int]]:
        return [(i, round) for i, round in self.candidates if self._may(i, round)]

    def any_open(self) -> bool:
        """Whether one may start. Whoever changes something asks in the stead of a lane of many instructions: at the
        first that may, and at the first thing that each of the others lacks, the answer is known."""
        return any(self._may(i, round) for i, round in self.candidates)

    def first(self, among: Sequence[tuple[Instruction, int]]) -> tuple[Instruction, int] | None:
        """Of those `among` which may start the one of lowest priority number, of these the one that has been open
        longest. What has become open since these were listed is not asked for yet: a lane that took it would wait for
        one message while others are there."""
        ready = (one for one in among if self._may(*one))
        return min(ready, key=lambda one: (one[0].priority, self._since(*one)), default=None)

    def _since(self, instruction: Instruction, round: int) -> int:
        if instruction in self.posted:
            return self.posted[instruction].arrived
        moments = sorted(self.rank.board.since(after, round) for after in instruction.after)
        return moments[(instruction.need or len(moments)) - 1] if moments else 0

    def _may(self, instruction: Instruction, round: int) -> bool:
        if instruction.name in self.rank.board.void:
            return False
        if instruction in self.posted:
            return self.posted[instruction].arrived > 0
        return may_start(self.rank, instruction, round)

    def ready(self) -> bool:
        for posted in self.posted.values():
            posted.ask()
        board = self.rank.board
        vain = all(i.name in board.void for i, _ in self.candidates)
        return board.failure is not None or vain or self.any_open()

    def block(self, timeout: Seconds) -> bool:
        for posted in self.posted.values():
            posted.watch()
        with self.rank.board.changed:
            return self.rank.board.changed.wait_for(self.ready, timeout)

    def __str__(self) -> str:
        instruction, round = self.candidates[0]
        if instruction in self.posted:
            return f"the message of {instruction.name} of round {round}"
        missing = [a.name for a in instruction.after if not self.rank.board.has(a, round)]
        return f"{', '.join(missing)} before {instruction.name} of round {round}"


@dataclass
class Posted:
    """A Receive that was started ahead of its turn, so that its lane can take whichever message comes first.

    One thread that carries out all lanes asks each in turn. A thread a lane cannot: gloo's messages never say that they
    are complete until they are waited for, so each is then watched by a thread that wakes the rank's lanes.
    """

    pending: Pending
    board: Board
    waiter: threading.Thread | None = None
    arrived: int = 0

    def ask(self) -> None:
        """Look whether the message is there, unless a thread does."""
        if self.waiter is None and not self.arrived and self.pending.ready():
            self._arrives()

    def watch(self) -> None:
        """Let a thread wait for the message."""
        if self.waiter is None and not self.arrived:
            self.waiter = threading.Thread(target=self._wait, daemon=True)
            self.waiter.start()

    def _wait(self) -> None:
        try:
            self.pending.block(FOREVER)
        except BaseException as error:
            self.board.fail(error)
            return
        self._arrives()

    def _arrives(self) -> None:
        """Noted first, as lanes that wait for it are woken only where it is there when they are told."""
        with self.board.changed:
            self.arrived = self.board.moment + 1
            self.board.happens()


def may_start(rank: Rank, instruction: Instruction, round: int) -> bool:
    """Whether enough of an instance's predecessors are done, and its gate, if it has one, is open."""
    return arrived(rank, instruction, round) and goes_through(rank, instruction, round, arrived)


def arrived(rank: Rank, instruction: Instruction, round: int) -> bool:
    """Whether enough of an instance's predecessors are done, of those that are not left out."""
    board, after = rank.board, instruction.after
    if board.void or board.missing:
        after = tuple(one for one in after if not board.lacks(one, round))
    if instruction.need in (0, len(after)):
        return all(board.has(one, round) for one in after)
    return sum(board.has(one, round) for one in after) >= min(instruction.need, len(after))


def skips(rank: Rank, instruction: Instruction, round: int) -> bool:
    """Whether an instance that may start is late work, and is left out."""
    return instruction.unless is not None and rank.board.has(instruction.unless, round)
