"""The rules that every Program must keep. A Program that breaks one is a fault of Partita, and the error shows
where."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from partita.errors import ProgramError
from partita.program.gate import opens
from partita.program.instruction import After, Collective, Gate, Instruction, Receive, Send
from partita.program.program import Policy, Program, Role

# What tells transfers apart: a message by (key, source, target), a collective by (name, members).
TransferKey: TypeAlias = tuple[str, int, int] | tuple[str, tuple[int, ...]]
Messages: TypeAlias = NDArray[np.int64]


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


def _ends(program: Program, numbers: dict[str, int]) -> Iterator[Messages]:
    """Two arrays: all sends, then all receives, sorted, each message as one number made of its key, source and
    target."""
    size = program.size
    ranks = {role.name: np.array(role.ranks, np.int64) for role in program.roles}
    for kind in (Send, Receive):
        found = [np.zeros(0, np.int64)]
        for role, i in program.instructions():
            if isinstance(i.act, kind):
                first = numbers.setdefault(i.act.key, len(numbers)) * size
                peers = np.array(i.act.to if isinstance(i.act, Send) else i.act.source, np.int64)
                source, target = (ranks[role.name], peers) if kind is Send else (peers, ranks[role.name])
                found.append((first + source) * size + target)
        yield np.sort(np.concatenate(found))


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
    if program.size > 64:
        return
    rounds = program.drain + 3
    done: dict[tuple[int, str], int] = {}
    lanes = {
        (r, lane.name): (role, role.on(lane.name), lane.policy)
        for role in program.roles
        for r in role.ranks
        for lane in role.lanes
    }
    place, gates, key_of = dict.fromkeys(lanes, 0), _Gates(done, rounds), cache(partial(_transfer_key, program))
    moved = True
    while moved:
        moved = False
        arrived: dict[TransferKey, dict[int, str]] = {}
        for (rank, lane), (role, body, policy) in lanes.items():
            going = True
            while going:
                going = False
                for i in _heads(body, place[rank, lane], policy, rounds, rank, done):
                    if not _open(i, rank, done) or not gates.passes(role, i, rank):
                        continue
                    key = key_of(i.name, rank)
                    here = {} if key is None else arrived.setdefault(key, {})
                    here[rank] = i.name
                    if key is None or len(here) == len(_members(key)):
                        for other, name in here.items():
                            going = _finish(done, place, other, program.role_of[other].on_name[name])
                        here.clear()
                moved = moved or going
    stuck = [
        f"  rank {r} {lane}: {role.on(lane)[n % len(body)].name} of round {n // len(body)}"
        for (r, lane), (role, body, _) in lanes.items()
        if (n := place[r, lane]) < rounds * len(body)
    ]
    if stuck:
        raise ProgramError(f"{program.name} never finishes; waiting are\n" + "\n".join(stuck[:12]))


def _heads(
    body: tuple[Instruction, ...], at: int, policy: Policy, rounds: int, rank: int, done: dict[tuple[int, str], int]
) -> list[Instruction]:
    if policy is Policy.ORDER:
        return [body[at % len(body)]] if body and at < rounds * len(body) else []
    return [i for i in body if done.get((rank, i.name), 0) < rounds]


def _open(i: Instruction, rank: int, done: dict[tuple[int, str], int]) -> bool:
    round = done.get((rank, i.name), 0)
    met = (round < a.rounds or done.get((rank, a.name), 0) > round - a.rounds for a in i.after)
    return sum(met) >= i.need if i.need else all(met)


@dataclass
class _Gates:
    """The gates of all ranks during one play: how often each member has passed its gate, by rank, and how often in a
    row it was left out."""

    done: dict[tuple[int, str], int]
    rounds: int
    passed: Counter[tuple[int, str]] = field(default_factory=Counter)
    ages: dict[tuple[int, Gate], dict[str, int]] = field(default_factory=dict)

    def passes(self, role: Role, i: Instruction, rank: int) -> bool:
        """Whether an instance whose predecessors are done may pass its gate."""
        if i.gate is None or self.passed[rank, i.name] > self.done.get((rank, i.name), 0):
            return True
        coming = [name for name in role.gates[i.gate] if self.passed[rank, name] < self.rounds]
        waiting = [name for name in coming if self._waits(role.on_name[name], rank)]
        if opens(i.gate, self.ages.setdefault((rank, i.gate), {}), coming, waiting):
            self.passed.update((rank, name) for name in waiting)
        return self.passed[rank, i.name] > self.done.get((rank, i.name), 0)

    def _waits(self, i: Instruction, rank: int) -> bool:
        return self.passed[rank, i.name] == self.done.get((rank, i.name), 0) and _open(i, rank, self.done)


def _transfer_key(program: Program, name: str, rank: int) -> TransferKey | None:
    """What identifies the collective or message that a rank's instruction takes part in; None for other
    instructions."""
    role = program.role_of[rank]
    i = role.on_name[name]
    if isinstance(i.act, Send):
        return (i.act.key, rank, role.mine(i.act.to, rank))
    if isinstance(i.act, Receive):
        return (i.act.key, role.mine(i.act.source, rank), rank)
    if isinstance(i.act, Collective):
        return (i.name, next(g for g in i.act.groups if rank in g))
    return None


def _members(key: TransferKey) -> tuple[int, ...]:
    return key[1] if len(key) == 2 else key[1:]


def _finish(done: dict[tuple[int, str], int], place: dict[tuple[int, str], int], rank: int, i: Instruction) -> bool:
    done[rank, i.name] = done.get((rank, i.name), 0) + 1
    place[rank, i.lane] += 1
    return True
