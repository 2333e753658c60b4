"""What is left out of a Program while one of its ranks is away, and whether the others can go on without it.

server  from 2   I0.2 I1.2 ..            has to do with rank 2 alone: left out while it is away
        serve    U0.1 V0.1 U0.2 V0.2     so are U0.2 and V0.2; what waits for them waits no longer
worker  compute  T F B U X               X, the mean that comes back from rank 2: passed over

Who comes back enters at the round `at` in which the others are. Of the round before it gets the answers, in which it
finds the weights of now; the rest of that round, and of those before it, counts as done on both ends.
"""

from __future__ import annotations

from collections.abc import Collection

from partita.program.instruction import (
    Apply,
    Collective,
    Combine,
    Decode,
    Instruction,
    Mark,
    Mix,
    Receive,
    Send,
    Snapshot,
    Space,
)
from partita.program.program import Program, Role


def concerns(role: Role, rank: int, instruction: Instruction) -> frozenset[int]:
    """The one other rank that an instruction of `rank` has to do with, if it has to do with one alone."""
    act, found = instruction.act, set[int]()
    if isinstance(act, Send):
        found = {role.mine(act.to, rank)}
    elif isinstance(act, Receive):
        found = {role.mine(act.source, rank)}
    elif isinstance(act, Apply):
        found = {act.source}
    elif isinstance(act, Snapshot):
        found = {act.to}
    elif isinstance(act, Mix):
        found = {role.mine(term.peer, rank) if term.space is Space.INBOX else rank for term in act.terms}
    elif isinstance(act, Mark):
        waits = [concerns(role, rank, role.on_name[after.name]) for after in instruction.after]
        found = set[int]().union(*waits) if all(waits) else found
    return frozenset(found - {rank}) if len(found) == 1 else frozenset()


def left_out(role: Role, rank: int, away: Collection[int]) -> frozenset[str]:
    """The instructions of `rank` that have to do with those `away`."""
    return frozenset(i.name for i in role.instructions if concerns(role, rank, i) & frozenset(away))


def met_by(program: Program, peer: int) -> tuple[int, ...]:
    """The ranks that have to do with `peer`."""
    ranks = ((role, rank) for role in program.roles for rank in role.ranks if rank != peer)
    return tuple(sorted(rank for role, rank in ranks if left_out(role, rank, (peer,))))


def expendable(program: Program, peer: int) -> bool:
    """Whether the others can go on without a worker: nobody sums it up with others, and what it sends enters by
    instructions that have to do with it alone."""
    if program.role_of[peer].keeps != "model" or program.size == 1:
        return False
    for role, i in program.instructions():
        act = i.act
        if isinstance(act, Collective) and any(peer in group for group in act.groups):
            return False
        if set(role.ranks) == {peer}:
            continue
        if isinstance(act, Combine | Decode) and peer in act.sources:
            return False
        if isinstance(act, Receive) and act.space is not Space.INBOX and peer in act.source:
            return False
        if isinstance(act, Mix) and any(
            peer in term.peer and not any(concerns(role, rank, i) for rank in role.ranks) for term in act.terms
        ):
            return False
    return True


def enters(program: Program, peer: int) -> bool:
    """Whether who comes back finds the weights of now in the answers that it gets: they come as its parameters."""
    role = program.role_of[peer]
    came = {i.act.bucket for i in role.instructions if isinstance(i.act, Receive) and i.act.space is Space.PARAMETER}
    return program.drops or {bucket.name for bucket in program.trained} <= came


def entered(role: Role, rank: int, at: int, came: Collection[int] = ()) -> dict[str, int]:
    """Rounds that count as done when a rank enters at round `at`: on a peer, of what has to do with those that `came`;
    on itself, where none are given, of all it does."""
    found: dict[str, int] = {}
    for i in role.instructions:
        answer = isinstance(i.act, Send | Snapshot) if came else isinstance(i.act, Receive)
        if not came or concerns(role, rank, i) & frozenset(came):
            found[i.name] = at - answer
    return found
