"""Who of a rank's peers is away, and what that leaves out of what it does. Mutable, private to one run of one rank.

away       a message's other end is gone: what has to do with that rank alone is left out, and no longer waited for
parked     a lane all of which is left out waits for the rank to come back, or for the end of the others
"""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass
from typing import TypeVar

from partita.program.absence import entered, left_out
from partita.program.instruction import Act, Apply, Instruction, Receive, Send
from partita.runtime.rank import Rank
from partita.runtime.transport import Gone, Pending, Steps
from partita.units import Seconds

T = TypeVar("T")


def goes(rank: Rank, peer: int, times: int) -> None:
    """A peer is gone that had gone so many times before; nothing new where it is known to have gone since."""
    with rank.board.changed:
        if rank.gone.get(peer, 0) != times:
            return
        rank.away.add(peer)
        rank.gone[peer] = times + 1
        brought = {i.act.bucket for i in rank.role.instructions if isinstance(i.act, Apply) and i.act.source == peer}
        for bucket in sorted(brought & rank.role.serves) if not rank.program.drops else ():
            rank.state.ledger.lose(bucket, peer)
        _left_out(rank)


def comes(rank: Rank, peer: int, at: int) -> None:
    """A peer is back, and enters at round `at`, which this rank has not begun."""
    with rank.board.changed:
        rank.away.discard(peer)
        rank.since[peer] = at
        for name, done in entered(rank.program, rank.rank, at, peer).items():
            rank.board.missing[name] = rank.board.done.get(name, 0), done
            rank.board.done[name] = done
        turns: dict[str, int] = {}
        for i in rank.role.instructions:
            if isinstance(i.act, Apply) and i.act.source == peer:
                turns[i.act.bucket] = turns.get(i.act.bucket, 0) + at
        rank.state.ledger.turns |= {(bucket, peer): turn for bucket, turn in turns.items()}
        _left_out(rank)


def begin_without(rank: Rank) -> None:
    """A Program begins of which some are away already."""
    with rank.board.changed:
        _left_out(rank)


def _left_out(rank: Rank) -> None:
    rank.board.void = left_out(rank.role, rank.rank, rank.away)
    rank.board.happens()


def through(rank: Rank, at: int) -> bool:
    """Whether a rank is done with all rounds before `at`."""
    board = rank.board
    return all(i.name in board.void or board.done.get(i.name, 0) >= at for i in rank.role.instructions)


def rests(rank: Rank, lane: str, names: Set[str]) -> bool:
    """Whether a lane that has only these instructions left, all of which are left out, waits in vain: nobody is left
    but lanes that wait as it does."""
    with rank.board.changed:
        if not rank.board.void or not names <= rank.board.void:
            rank.parked.discard(lane)
            return False
        rank.parked.add(lane)
        return rank.going <= rank.parked


def over(rank: Rank, lane: str) -> None:
    """A lane has ended."""
    with rank.board.changed:
        rank.going.discard(lane)
        rank.parked.discard(lane)
        rank.board.happens()


def stale(rank: Rank, instruction: Instruction, round: int) -> bool:
    """Whether an instance is done, or of a round that was left out while the rank was away with which it has to do."""
    return rank.board.done.get(instruction.name, 0) > round


def other_end(rank: Rank, act: Act) -> int:
    """The other end of a message, if the run can go on without it; else -1."""
    if not rank.spare or not isinstance(act, Send | Receive):
        return -1
    peer = rank.role.mine(act.to if isinstance(act, Send) else act.source, rank.rank)
    return peer if peer in rank.spare else -1


def owed(rank: Rank, peer: int, start: Callable[[], T]) -> T | Owed:
    """What is started with a rank that may go away: it is then over as well."""
    gone = rank.gone.get(peer, 0)
    if peer in rank.away:
        return Owed(rank, peer, None, gone)
    try:
        pending = start()
    except Gone:
        if peer not in rank.spare:
            raise
        goes(rank, peer, gone)
        return Owed(rank, peer, None, gone)
    return Owed(rank, peer, pending, gone) if peer in rank.spare and isinstance(pending, Pending) else pending


def lost(rank: Rank, instruction: Instruction, pending: Pending | Steps | None) -> bool:
    """Whether what was begun came to nothing, since who it has to do with is gone."""
    return instruction.name in rank.board.void or (isinstance(pending, Owed) and pending.over())


@dataclass
class Parked:
    """A lane whose instructions, these, may all be left out at once."""

    rank: Rank
    lane: str
    names: frozenset[str]

    @property
    def idle(self) -> bool:
        """Whether all are left out."""
        return self.names <= self.rank.board.void

    def ready(self) -> bool:
        return self.rank.board.failure is not None or rests(self.rank, self.lane, self.names) or not self.idle

    def block(self, timeout: Seconds) -> bool:
        """Without a limit: others work, or will fail."""
        with self.rank.board.changed:
            return self.rank.board.changed.wait_for(self.ready)


@dataclass
class Owed:
    """A message whose other end may go away: it then is over, and what it was for is left out."""

    rank: Rank
    peer: int
    pending: Pending | None
    gone: int

    def over(self) -> bool:
        """Whether the other end went away after this began, even if it is back."""
        return self.pending is None or self.rank.gone.get(self.peer, 0) != self.gone

    def ready(self) -> bool:
        return self.over() or (self.pending is not None and self.pending.ready())

    def block(self, timeout: Seconds) -> bool:
        if self.pending is None:
            return True
        try:
            return self.pending.block(timeout)
        except Gone:
            goes(self.rank, self.peer, self.gone)
            return True

    def __str__(self) -> str:
        return f"a message to or from rank {self.peer}"
