"""The peers of a rank that are away, and which of its work is left out meanwhile. Mutable, private to one run of one
rank.

away       the other end of a message is gone: instructions that involve only that rank are left out and not waited for
parked     a lane whose instructions are all left out waits until the rank is back, or the other lanes have ended
"""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass
from typing import TypeVar

from partita.program.absence import entered, left_out
from partita.program.flight import peers_of
from partita.program.instruction import Act, Apply, Instruction, Receive, Send
from partita.runtime.rank import Rank
from partita.transport.transport import PeerGone, Pending, Steps
from partita.units import Seconds

T = TypeVar("T")


def mark_gone(rank: Rank, peer: int, times: int) -> None:
    """Note that a peer is gone, for the (`times` + 1)-th time. Does nothing if this is known already."""
    with rank.board.changed:
        if rank.gone.get(peer, 0) != times:
            return
        rank.away.add(peer)
        rank.gone[peer] = times + 1
        brought = {act.bucket for act in rank.role.acts(Apply) if act.source == peer}
        for bucket in sorted(brought & rank.role.serves) if not rank.program.drops else ():
            rank.state.ledger.lose(bucket, peer)
        _left_out(rank)


def mark_back(rank: Rank, peer: int, at: int) -> None:
    """Note that a peer is back and takes part from round `at` on; this rank has not begun that round."""
    with rank.board.changed:
        rank.away.discard(peer)
        rank.since[peer] = at
        for name, done in entered(rank.program, rank.rank, at, peer).items():
            rank.board.missing[name] = rank.board.done.get(name, 0), done
            rank.board.done[name] = done
        turns: dict[str, int] = {}
        for act in rank.role.acts(Apply):
            if act.source == peer:
                turns[act.bucket] = turns.get(act.bucket, rank.state.ledger.begun.get(act.bucket, 0)) + at
        rank.state.ledger.turns |= {(bucket, peer): turn for bucket, turn in turns.items()}
        _left_out(rank)


def begin_without(rank: Rank) -> None:
    """A Program begins while some peers are away."""
    with rank.board.changed:
        _left_out(rank)


def _left_out(rank: Rank) -> None:
    rank.board.void = left_out(rank.role, rank.rank, rank.away)
    rank.board.happens()


def finished_before(rank: Rank, at: int) -> bool:
    """Whether a rank has finished all rounds before `at`."""
    board = rank.board
    return all(i.name in board.void or board.done.get(i.name, 0) >= at for i in rank.role.instructions)


def waits_in_vain(rank: Rank, lane: str, names: Set[str]) -> bool:
    """Whether a lane need not wait any longer whose remaining instructions, `names`, are all left out: all lanes
    that have not ended wait like it."""
    with rank.board.changed:
        if not rank.board.void or not names <= rank.board.void:
            rank.parked.discard(lane)
            return False
        rank.parked.add(lane)
        return rank.going <= rank.parked


def lane_over(rank: Rank, lane: str) -> None:
    """A lane has ended."""
    with rank.board.changed:
        rank.going.discard(lane)
        rank.parked.discard(lane)
        rank.board.happens()


def stale(rank: Rank, instruction: Instruction, round: int) -> bool:
    """Whether an instance is done already, or is of a round that was left out while a peer was away."""
    return rank.board.done.get(instruction.name, 0) > round


def other_end(rank: Rank, act: Act) -> int:
    """The rank at the other end of a message if the run can do without it; otherwise -1."""
    if not rank.spare or not isinstance(act, Send | Receive):
        return -1
    peer = rank.role.mine(peers_of(act), rank.rank)
    return peer if peer in rank.spare else -1


def droppable(rank: Rank, peer: int, due: Callable[[], bool], start: Callable[[], T]) -> T | DroppableMessage:
    """Start something with a peer that may go away; once the peer is gone, it counts as over. So it does at once where
    it is not `due` any more: the peer may have gone and be back for a later round, on a link of its own, on which
    messages of one name follow each other by their order alone."""
    with rank.board.changed:  # nobody is marked as gone meanwhile, and so no link is made anew
        gone = rank.gone.get(peer, 0)
        if peer in rank.away or not due():
            return DroppableMessage(rank, peer, None, gone)
        try:
            pending = start()
        except PeerGone:
            if peer not in rank.spare:
                raise
            mark_gone(rank, peer, gone)
            return DroppableMessage(rank, peer, None, gone)
    if peer in rank.spare and isinstance(pending, Pending):
        return DroppableMessage(rank, peer, pending, gone)
    return pending


def lost(rank: Rank, instruction: Instruction, pending: Pending | Steps | None) -> bool:
    """Whether a started message came to nothing since its peer is gone."""
    return instruction.name in rank.board.void or (isinstance(pending, DroppableMessage) and pending.over())


@dataclass
class AbsenceWait:
    """The wait of a lane whose instructions, `names`, may all be left out at once."""

    rank: Rank
    lane: str
    names: frozenset[str]

    @property
    def idle(self) -> bool:
        """Whether all of them are left out."""
        return self.names <= self.rank.board.void

    def ready(self) -> bool:
        """Whether `block` would return at once."""
        return self.rank.board.failure is not None or waits_in_vain(self.rank, self.lane, self.names) or not self.idle

    def block(self, timeout: Seconds) -> bool:
        """Wait without a limit, since other lanes work, or will fail."""
        with self.rank.board.changed:
            return self.rank.board.changed.wait_for(self.ready)


@dataclass
class DroppableMessage:
    """A message whose other end may go away. It is over when that happens, and its instruction is left out."""

    rank: Rank
    peer: int
    pending: Pending | None
    gone: int

    def over(self) -> bool:
        """Whether the other end went away after the message was started, even if it is back by now."""
        return self.pending is None or self.rank.gone.get(self.peer, 0) != self.gone

    def ready(self) -> bool:
        """Whether `block` would return at once."""
        return self.over() or (self.pending is not None and self.pending.ready())

    def block(self, timeout: Seconds) -> bool:
        """Wait until ready; False if `timeout` seconds passed before."""
        if self.pending is None:
            return True
        try:
            return self.pending.block(timeout)
        except PeerGone:
            mark_gone(self.rank, self.peer, self.gone)
            return True

    def __str__(self) -> str:
        return f"a message to or from rank {self.peer}"
