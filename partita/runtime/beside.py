"""What the thread of the leading lane does for other lanes.

A wake-up of another thread takes a tenth of a millisecond where the core is free, and a time slice where it is not.
So lanes that load samples or receive values have no thread: the leading lane, which alone takes what they bring, waits
for them itself.

a thread for each lane   R ~~> F     ~~> another thread wakes up
beside                   R F
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import TypeAlias

from partita.program.instruction import Instruction, Load, Receive
from partita.program.program import Policy
from partita.program.space import Space
from partita.runtime.rank import Rank
from partita.runtime.values import MessageGroup
from partita.runtime.waits import StartWait
from partita.transport.transport import Pending

LaneRun: TypeAlias = Generator[Pending, None, None]


def taken_along(rank: Rank, runs: dict[str, LaneRun]) -> None:
    """Let the leading lane of `runs` run those that need no thread, which are then no runs of their own."""
    runs[rank.role.leading] = beside(rank, runs[rank.role.leading], {lane: runs.pop(lane) for lane in led(rank)})


def led(rank: Rank) -> list[str]:
    """The lanes that have no thread: those that load samples which are in memory, and those that receive values, if
    only the leading lane takes what they bring. Nothing waits for the Send of a value, so a Receive that is started
    late holds up nobody else."""
    lanes = [lane.name for lane in rank.role.lanes if lane.policy is Policy.ORDER and lane.name != rank.role.leading]
    return [name for name in lanes if _brings(rank, rank.role.on(name))]


def _brings(rank: Rank, instructions: Sequence[Instruction]) -> bool:
    if all(isinstance(i.act, Load) for i in instructions):
        return rank.feed.at_hand
    names = {i.name for i in instructions}
    takers = {i.lane for i in rank.role.on_name.values() if any(after.name in names for after in i.after)}
    acts = [i.act for i in instructions if not i.after and i.gate is None]
    values = [act for act in acts if isinstance(act, Receive) and act.space is Space.VALUE]
    return len(values) == len(instructions) and not rank.spare and takers <= {rank.role.leading}


def beside(rank: Rank, run: LaneRun, others: Mapping[str, LaneRun]) -> LaneRun:
    """Run the leading lane, and whenever it waits, as much of the `others` as is ready; where it waits for what one of
    them receives, wait for that message."""
    waits = {lane: next(other, None) for lane, other in others.items()}
    for pending in run:
        while True:
            for lane, wait in waits.items():
                while wait is not None and not isinstance(wait, MessageGroup) and wait.ready():
                    wait = waits[lane] = next(others[lane], None)
            came = _message_of(pending, waits)
            if not came:
                break
            yield waits[came]  # type: ignore[misc]
            waits[came] = next(others[came], None)
        yield pending
    for lane, wait in waits.items():
        if wait is not None and rank.board.failure is None:  # after a failure nobody may send it any more
            yield wait
            yield from others[lane]


def _message_of(pending: Pending, waits: Mapping[str, Pending | None]) -> str:
    """The lane whose next message an instance waits for; "" if it waits for none."""
    if isinstance(pending, StartWait) and not pending.ready():
        for lane in pending.missing_lanes():
            if isinstance(waits.get(lane), MessageGroup):
                return lane
    return ""
