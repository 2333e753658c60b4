"""The rules that every Program must keep. A Program that breaks one is a fault of Partita, and the error shows
where."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cache, partial

import numpy as np

from partita.arrays import Ints
from partita.errors import ProgramError
from partita.program.flight import peers_of
from partita.program.instruction import After, Collective, Receive, Send
from partita.program.play import stuck_lanes
from partita.program.program import Program, Role


def verify(program: Program, *, clocked: bool = False) -> Program:
    """The program itself, if it keeps all rules.

    Raises ProgramError if a name is unknown or appears twice, a message lacks its other end, the members of a
    collective disagree, or no order of the lanes ever finishes. The last rule is left to the event clock if the program
    is simulated next (`clocked`).
    """
    for role in program.roles:
        _names(program, role)
    _messages(program)
    _collectives(program)
    if not clocked:
        _progress(program)
    return program


def _names(program: Program, role: Role) -> None:
    names = Counter(i.name for i in role.instructions)
    lanes = {lane.name for lane in role.lanes}
    for i in role.instructions:
        if names[i.name] > 1:
            raise ProgramError(f"{program.name}: role {role.name} has {names[i.name]} instructions named {i.name}")
        if i.lane not in lanes:
            raise ProgramError(
                f"{program.name}: {i.name} of role {role.name} is in lane {i.lane!r}, which the role lacks"
            )
        for after in (*i.after, *((i.unless,) if i.unless else ()), *((After(i.until),) if i.until else ())):
            if after.name not in names:
                raise ProgramError(
                    f"{program.name}: {i.name} of role {role.name} waits for {after.name}, which the role lacks"
                )
        if i.need > len(i.after):
            raise ProgramError(f"{program.name}: {i.name} needs {i.need} of {len(i.after)} predecessors")


def _ends(program: Program, numbers: dict[str, int]) -> Iterator[Ints]:
    """Two arrays: all sends, then all receives, sorted, each message as one number made of its key, source and
    target."""
    size = program.size
    for kind in (Send, Receive):
        pair, first, pairs, width = cache(partial(_pairs, size, kind)), [], [np.zeros(0, np.int64)], []
        for role in program.roles:
            for act in (i.act for i in role.instructions if isinstance(i.act, kind)):
                first.append(numbers.setdefault(act.key, len(numbers)))
                pairs.append(pair(role.ranks, peers_of(act)))
                width.append(len(pairs[-1]))
        yield np.sort(np.repeat(np.array(first, np.int64), width) * size * size + np.concatenate(pairs))


def _pairs(size: int, kind: type[Send] | type[Receive], ranks: tuple[int, ...], peers: tuple[int, ...]) -> Ints:
    """source * size + target of what ranks send to their peers, or receive from them."""
    mine, other = np.broadcast_arrays(np.array(ranks, np.int64), np.array(peers, np.int64))
    found: Ints = mine * size + other if kind is Send else other * size + mine
    return found


def _messages(program: Program) -> None:
    numbers: dict[str, int] = {}
    sent, received = _ends(program, numbers)
    if np.array_equal(sent, received):
        return
    more, less = (Counter(each.tolist()) for each in (sent, received))
    one, keys = next(iter((more - less) + (less - more))), list(numbers)
    side = "sent and never received" if more[one] > less[one] else "received and never sent"
    pair, target = divmod(one, program.size)
    key, source = divmod(pair, program.size)
    raise ProgramError(f"{program.name}: message {keys[key]} from rank {source} to rank {target} is {side}")


def _collectives(program: Program) -> None:
    """Check that all members of a group name the same collectives, and that lanes in program order have them in the
    same order."""
    orders: dict[tuple[int, ...], dict[int, tuple[str, ...]]] = {}
    for role in program.roles:
        acts = [(i.name, i.act.groups) for i in role.instructions if isinstance(i.act, Collective)]
        names: dict[tuple[int, ...], list[str]] = {}
        for name, groups in acts:
            for group in groups:
                names.setdefault(group, []).append(name)
        for group, order in names.items():
            ours = dict.fromkeys(set(group) & set(role.ranks), tuple(order))
            orders.setdefault(group, {}).update(ours)
    for group, by_rank in orders.items():
        if len(by_rank) != len(group) or len(set(by_rank.values())) > 1:
            raise ProgramError(f"{program.name}: the ranks {group} disagree on their collectives: {by_rank}")


def _progress(program: Program) -> None:
    """Play the program with tokens for as many rounds as it looks back. Programs of up to 64 ranks only: the event
    clock finds the same in larger ones."""
    stuck = stuck_lanes(program, program.drain + 3) if program.size <= 64 else []
    if stuck:
        raise ProgramError(f"{program.name} never finishes; waiting are\n" + "\n".join(stuck[:12]))
