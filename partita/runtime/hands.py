"""Lanes that choose at run time: hands that take what is ready, one for each instruction that may be in flight at once.

lane push, credit 8   ready S3 S1 S2 of 4 bytes     hand 0   S1------ S2 ...       8 bytes in flight, and the next when
                                                    hand 1   S3----------          one of these is done
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from itertools import accumulate

from partita.program.flight import in_flight
from partita.program.instruction import After, Instruction, Receive
from partita.program.program import Lane
from partita.runtime.acts import carry_out
from partita.runtime.leg import Reach
from partita.runtime.rank import Rank
from partita.runtime.roll import Owed, rests
from partita.runtime.transport import Pending
from partita.runtime.turn import Posted, Turn, skips
from partita.units import Bytes, Seconds


@dataclass
class Hands:
    """What the hands of one lane share: the instance that each instruction that waits has to do next, Receives that
    were started ahead of their turn, how many hands are `busy`, and what they hold in flight. Instructions that are
    left out wait until they are not any more, or until the rank has nothing else to do."""

    rank: Rank
    lane: Lane
    reach: Reach
    sizes: dict[str, Bytes]
    at: dict[Instruction, int] = field(default_factory=dict)
    posted: dict[Instruction, Posted] = field(default_factory=dict)
    busy: int = 0
    flying: Bytes = 0

    @property
    def count(self) -> int:
        """As many as the smallest of its instructions fill its credit."""
        before = [0, *accumulate(sorted(self.sizes.values()))][: len(self.sizes)]
        return max(sum(size < self.lane.credit for size in before), 1)

    def free(self) -> bool:
        """Whether one more may start."""
        return self.flying < self.lane.credit if self.lane.credit else self.busy == 0

    def over(self) -> bool:
        """Whether there is nothing left to do, nor will be."""
        self._catch_up()
        return self.busy == 0 and (not self.at or rests(self.rank, self.lane.name, {i.name for i in self.at}))

    def round(self, otherwise: int) -> int:
        """The first round of which there is something left to do."""
        void = self.rank.board.void
        return min((round for i, round in self.at.items() if i.name not in void), default=otherwise)

    def turn(self) -> Turn:
        return Turn(self.rank, tuple(self.at.items()), self.posted)

    def put(self, instruction: Instruction, round: int) -> None:
        """An instance that is to be done."""
        with self.rank.board.changed:
            self.at[instruction] = round
            self.rank.board.changed.notify_all()

    def _catch_up(self) -> None:
        """Messages of who is gone are not waited for; of who came back the rounds between are left out."""
        if not self.rank.spare:
            return
        for instruction in [
            i for i, one in self.posted.items() if isinstance(one.pending, Owed) and one.pending.over()
        ]:
            del self.posted[instruction]
        for instruction, round in tuple(self.at.items()):
            self.at[instruction] = max(round, self.rank.board.done.get(instruction.name, 0))
            if self.at[instruction] >= self.reach.last(instruction):
                del self.at[instruction]

    def take(self) -> tuple[Instruction, int, Posted | None] | None:
        """The instance that a hand should do now, if there is one; Receives that may start are started. Whichever
        peer's message comes first is taken first."""
        with self.rank.board.changed:
            self._catch_up()
            opened = self.turn().open()
            for instruction, round in opened:
                ahead = isinstance(instruction.act, Receive) and instruction not in self.posted
                if ahead and not skips(self.rank, instruction, round):
                    self.posted[instruction] = Posted(_start(self.rank, instruction, round), self.rank.board)
            chosen = self.turn().first(opened) if self.free() else None
            if chosen is None:
                return None
            instruction, round = chosen
            del self.at[instruction]
            self.busy += 1
            self.flying += self.sizes[instruction.name]
            return instruction, round, self.posted.pop(instruction, None)

    def landed(self, instruction: Instruction) -> None:
        """What it had in flight is there."""
        with self.rank.board.changed:
            self.flying -= self.sizes[instruction.name]
            self.rank.board.changed.notify_all()

    def rest(self) -> None:
        """A hand is done with what it took."""
        with self.rank.board.changed:
            self.busy -= 1
            self.rank.board.changed.notify_all()

    def clear(self) -> bool:
        """Whether a hand need not wait, by what is known: messages are not asked whether they are there, for whoever
        asks one starts to wait for it."""
        with self.rank.board.changed:
            return self.rank.board.failure is not None or self.over() or (self.free() and self.turn().any_open())

    def ready(self) -> bool:
        with self.rank.board.changed:
            for posted in self.posted.values():
                posted.ask()
            return self.clear()

    def block(self, timeout: Seconds) -> bool:
        with self.rank.board.changed:
            for posted in self.posted.values():
                posted.watch()
            return self.rank.board.changed.wait_for(self.ready, timeout)

    def __str__(self) -> str:
        return str(self.turn()) if self.at else f"what lane {self.lane.name} has in flight"


@dataclass(frozen=True)
class Done:
    """Waits until an instance of an instruction is done."""

    rank: Rank
    after: After
    round: int

    def ready(self) -> bool:
        return self.rank.board.failure is not None or self.rank.board.has(self.after, self.round)

    def block(self, timeout: Seconds) -> bool:
        with self.rank.board.changed:
            return self.rank.board.changed.wait_for(self.ready, timeout)

    def __str__(self) -> str:
        return f"{self.after.name} of round {self.round}"


def _start(rank: Rank, instruction: Instruction, round: int) -> Pending:
    pending = carry_out(rank, instruction, round)
    assert isinstance(pending, Pending)
    return pending


def until(rank: Rank, instruction: Instruction, round: int) -> Generator[Pending, None, None]:
    """Waits for what holds an instruction's lane beyond its own end."""
    if instruction.until:
        yield Done(rank, After(instruction.until), round)


def hands_of(rank: Rank, lane: Lane, reach: Reach) -> Hands:
    """What the hands of a lane share, all of them idle."""
    return Hands(rank, lane, reach, {i.name: in_flight(rank.program, rank.role, i) for i in rank.role.on(lane.name)})
