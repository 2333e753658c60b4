"""Messages of a lane in program order are started before their turn.

A backend sends nothing until the receiver has said where it goes, and that message queues behind others on the same
link. Receives that are posted one by one therefore have a pause between them:

one by one   post 0 ---- R0 post 1 ---- R1 post 2 ---- R2
ahead        post 0 1 2 ---- R0 R1 R2

The thread of a lane that sends would wake up when there is something to send. Where the thread that made it goes on
computing on the same core, that takes a time slice, 3 ms. So that thread starts the Send itself.

by its lane  F ~~> S ----        ~~> another thread wakes up
ahead        F S ----
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Final

from partita.program.instruction import Instruction, Receive, Send
from partita.program.space import Space
from partita.runtime.acts import carry_out
from partita.runtime.leg import Interval
from partita.runtime.membership import stale
from partita.runtime.rank import Rank
from partita.runtime.waits import arrived
from partita.transport.transport import Pending, Steps

MADE_AT_START: Final = (Space.VALUE, Space.CODED)  # has no place to land in before its turn


class Ahead:
    """Starts the instances of one lane of one rank; each in its turn if ranks of the run may go away."""

    def __init__(self, rank: Rank, instructions: Sequence[Instruction], interval: Interval) -> None:
        self._interval = interval
        self._started: dict[tuple[str, int], Pending | Steps | None] = {}
        self._behind: Instruction | None = None  # the first Receive in a row that could not be started yet
        plain = [] if rank.spare else [one for one in instructions if one.gate is None and one.unless is None]
        self._next = {one.name: other for one, other in pairwise(plain) if _lands(one) and _lands(other)}
        for one in plain:
            if _leaves(one):
                rank.then.setdefault(one.after[0].name, []).append(partial(self._made, one))

    def start(self, rank: Rank, instruction: Instruction, round: int) -> Pending | Steps | None:
        """Start an instance, unless it was started ahead, and the Receives behind it that wait for nothing else."""
        if (instruction.name, round) not in self._started:
            self._started[instruction.name, round] = carry_out(rank, instruction, round)
            self._behind = self._next.get(instruction.name)
        behind = self._behind if instruction.name in self._next else None
        while behind is not None and self._may(rank, behind, round):
            self._started[behind.name, round] = carry_out(rank, behind, round)
            self._behind = behind = self._next.get(behind.name)
        return self._started.pop((instruction.name, round))

    def _may(self, rank: Rank, behind: Instruction, round: int) -> bool:
        due = round < self._interval.last(behind) and not stale(rank, behind, round)
        return due and arrived(rank, behind, round)

    def _made(self, send: Instruction, rank: Rank, round: int) -> None:
        """Start a Send: what it waits for is made, and not yet marked as done."""
        if round < self._interval.last(send):
            rank.early[send.name, round] = rank.clock(True)
            self._started[send.name, round] = carry_out(rank, send, round)


def _lands(instruction: Instruction) -> bool:
    act = instruction.act
    return isinstance(act, Receive) and act.space not in MADE_AT_START


def _leaves(instruction: Instruction) -> bool:
    act = instruction.act
    sends = isinstance(act, Send) and act.space is not Space.CODED  # which goes in several messages
    return sends and [after.rounds for after in instruction.after] == [0]
