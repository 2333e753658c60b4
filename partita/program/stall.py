"""Which rank holds up a run that makes no progress: derived from the Program and from where every rank is in it.

rank 0   B1 P1 A1 .........        rank 2 has not sent bucket b1 of step 17;
rank 1   B1 P1 A1 .........        ranks 0, 1 wait for it in A1
rank 2   B1 (stopped)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from partita.program.flight import peers_of
from partita.program.instruction import Collective, Compute, Instruction, Load, Receive, Send, Update
from partita.program.program import Program
from partita.units import Seconds

DOING: Final = {Load: "reading samples ", Compute: "computing ", Update: "updating "}


@dataclass(frozen=True, slots=True)
class LanePosition:
    """The instruction that a lane is in since `seconds`: instance `round` of `name`. `meets`: it waits for other ranks
    there; otherwise it computes."""

    lane: str
    name: str
    round: int
    seconds: Seconds
    meets: bool


@dataclass(frozen=True)
class RankPosition:
    """A rank's position in its Program: the instructions that its lanes are in, the rounds done of each instruction,
    and the run's step number of round 0."""

    places: tuple[LanePosition, ...]
    done: Mapping[str, int]
    first_step: int


@dataclass(frozen=True)
class Stall:
    """The `ranks` that hold up `step`, and a sentence that says so."""

    ranks: tuple[int, ...]
    step: int
    sentence: str


@dataclass
class Wait:
    """Instance `round` of an instruction in which `ranks` wait for the ranks `absent`."""

    instruction: Instruction
    round: int
    absent: tuple[int, ...]
    ranks: list[int] = field(default_factory=list)


def stall_of(program: Program, positions: Mapping[int, RankPosition], mute: Mapping[int, str]) -> Stall | None:
    """The ranks that others wait for and that wait for nobody: first those that do not report (`mute`: rank -> its
    state in words), otherwise those that compute. None if no rank waits for another one."""
    waits = _waits(program, positions)
    if not waits:
        return None
    waiting = {rank for wait in waits for rank in wait.ranks}
    missed = sorted({rank for wait in waits for rank in wait.absent})
    guilty = [rank for rank in missed if rank in mute] or [rank for rank in missed if rank not in waiting]
    first = next((wait for wait in waits if set(wait.absent) & set(guilty)), waits[0])
    step = next(iter(positions.values())).first_step + first.round * program.steps
    here = tuple(rank for rank in guilty if rank in first.absent)
    if not here:
        return Stall(tuple(sorted(waiting)), step, f"{name_ranks(sorted(waiting))} wait for each other in step {step}")
    who = ", ".join(f"rank {rank}{_how(program, rank, positions, mute)}" for rank in here)
    act = first.instruction.act
    missing = "received" if isinstance(act, Send) else "sent"
    assert isinstance(act, Collective | Send | Receive)
    what = f"bucket {act.bucket}" if act.bucket in program.bucket else act.bucket
    has = "has" if len(here) == 1 else "have"
    waits_for = "waits" if len(first.ranks) == 1 else "wait"
    sentence = (
        f"{who} {has} not {missing} {what} of step {step}; {name_ranks(first.ranks)} {waits_for} for it in "
        f"{first.instruction.name}"
    )
    return Stall(here, step, sentence)


def _waits(program: Program, positions: Mapping[int, RankPosition]) -> list[Wait]:
    """Every instance in which ranks wait for ranks that have not reached it, by round."""
    found: dict[tuple[str, int, tuple[int, ...]], Wait] = {}
    for rank, position in sorted(positions.items()):
        on_name = program.role_of[rank].on_name
        for place in position.places:
            if not place.meets:
                continue
            instruction = on_name[place.name]
            absent = tuple(
                peer
                for peer, its in _peers(program, rank, instruction)
                if not _came(positions.get(peer), its, place.round)
            )
            if absent:
                wait = Wait(instruction, place.round, absent)
                found.setdefault((place.name, place.round, absent), wait).ranks.append(rank)
    return sorted(found.values(), key=lambda wait: wait.round)


def _peers(program: Program, rank: int, instruction: Instruction) -> list[tuple[int, str]]:
    """(rank, instruction name) of the other ranks that take part in an instruction, and their name of it."""
    act, role = instruction.act, program.role_of[rank]
    if isinstance(act, Collective):
        group = next(group for group in act.groups if rank in group)
        return [(peer, instruction.name) for peer in group if peer != rank]
    if isinstance(act, Send | Receive):
        peer = role.mine(peers_of(act), rank)
        other = Receive if isinstance(act, Send) else Send
        theirs: Sequence[Instruction] = program.role_of[peer].instructions
        return [(peer, i.name) for i in theirs if isinstance(i.act, other) and i.act.key == act.key]
    return []


def _came(position: RankPosition | None, name: str, round: int) -> bool:
    """Whether a rank has begun an instance, or finished it."""
    if position is None:
        return False
    here = any(place.name == name and place.round == round for place in position.places)
    return here or position.done.get(name, 0) > round


def _how(program: Program, rank: int, positions: Mapping[int, RankPosition], mute: Mapping[int, str]) -> str:
    if rank in mute:
        return f" ({mute[rank]})" if mute[rank] else " (which says nothing)"
    busy = [place for place in positions[rank].places if not place.meets] if rank in positions else []
    if not busy:
        return ""
    instruction = program.role_of[rank].on_name.get(busy[0].name)
    doing = DOING.get(type(instruction.act), "") if instruction else ""
    return f" ({doing}in {busy[0].name} for {busy[0].seconds:.0f} s)"


def name_ranks(ranks: Sequence[int]) -> str:
    """`rank 2`, or `ranks 0, 1, 3`."""
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
