"""Receives of a lane in program order are posted before their turn.

A backend sends nothing until the receiver has said where it goes, and that message queues behind others on the same
link. Receives that are posted one by one therefore have a pause between them:

one by one   post 0 ---- R0 post 1 ---- R1 post 2 ---- R2
ahead        post 0 1 2 ---- R0 R1 R2
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from partita.program.instruction import Instruction, Receive, Space
from partita.runtime.acts import carry_out
from partita.runtime.leg import Interval
from partita.runtime.membership import stale
from partita.runtime.rank import Rank
from partita.runtime.transport import Pending, Steps
from partita.runtime.waits import arrived

MADE_AT_START: Final = (Space.VALUE, Space.CODED)  # has no place to land in before its turn


class Ahead:
    """Starts the instances of one lane of one rank; each in its turn if ranks of the run may go away."""

    def __init__(self, rank: Rank, instructions: Sequence[Instruction], interval: Interval) -> None:
        self._interval = interval
        self._started: dict[str, Pending | Steps | None] = {}
        both = pairwise(() if rank.spare else instructions)
        self._next = {one.name: other for one, other in both if _lands(one) and _lands(other)}

    def start(self, rank: Rank, instruction: Instruction, round: int) -> Pending | Steps | None:
        """Start an instance, unless it was started ahead, and the Receives behind it that wait for nothing else."""
        if instruction.name not in self._started:
            self._started[instruction.name] = carry_out(rank, instruction, round)
        behind = self._next.get(instruction.name)
        while behind is not None and (behind.name in self._started or self._may(rank, behind, round)):
            if behind.name not in self._started:
                self._started[behind.name] = carry_out(rank, behind, round)
            behind = self._next.get(behind.name)
        return self._started.pop(instruction.name)

    def _may(self, rank: Rank, behind: Instruction, round: int) -> bool:
        due = round < self._interval.last(behind) and not stale(rank, behind, round)
        return due and arrived(rank, behind, round)


def _lands(instruction: Instruction) -> bool:
    act = instruction.act
    plain = instruction.gate is None and instruction.unless is None
    return plain and isinstance(act, Receive) and act.space not in MADE_AT_START
