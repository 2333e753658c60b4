"""The rules that every Program must keep. A Program that breaks one is a fault of Partita, and the error shows
where."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from typing import TypeAlias

import numpy as np

from partita.arrays import Ints
from partita.errors import ProgramError
from partita.program.flight import peers_of
from partita.program.gate import opens
from partita.program.instruction import After, Collective, Gate, Instruction, Receive, Send
from partita.program.program import Policy, Program, Role

# What tells transfers apart: a message by (key, source, target), a collective by (name, members).
TransferKey: TypeAlias = tuple[str, int, int] | tuple[str, tuple[int, ...]]


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


@dataclass(slots=True)
class _Line:
    """A lane of one rank: its turns, by their places, and how many have ended, all rounds together."""

    text: str
    ordered: bool
    body: list[int] = field(default_factory=list)
    ended: int = 0


@dataclass(frozen=True, slots=True)
class _Turn:
    """An instruction of one rank in the play: where it stands among all, its lane, what it waits for (places, and how
    many rounds back), and the transfer in which it takes part, with so many `members`."""

    place: int
    rank: int
    lane: _Line
    instruction: Instruction
    role: Role
    after: tuple[tuple[int, int], ...]
    key: TransferKey | None
    members: int


@dataclass
class _Play:
    """How often each turn is `done`; of gates, how often each member has `passed` and how often in a row it was left
    out."""

    turns: list[_Turn]
    rounds: int
    place: dict[tuple[int, str], int]
    done: list[int] = field(init=False)
    passed: list[int] = field(init=False)
    ages: dict[tuple[int, Gate], dict[str, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.done, self.passed = [0] * len(self.turns), [0] * len(self.turns)

    def heads(self, line: _Line) -> list[int]:
        """The turns of a lane that may be next."""
        if not line.ordered:
            return [n for n in line.body if self.done[n] < self.rounds]
        at, length = line.ended, len(line.body)
        return [line.body[at % length]] if at < self.rounds * length else []

    def met(self, n: int) -> bool:
        """Whether a turn's predecessors are done."""
        turn, round, done = self.turns[n], self.done[n], self.done
        need, met = turn.instruction.need or len(turn.after), 0
        for place, back in turn.after:
            met += round < back or done[place] > round - back
        return met >= need

    def passes(self, turn: _Turn) -> bool:
        """Whether an instance whose predecessors are done may pass its gate."""
        gate, rank = turn.instruction.gate, turn.rank
        if gate is not None and self.passed[turn.place] <= self.done[turn.place]:
            members = {name: self.place[rank, name] for name in turn.role.gates[gate]}
            coming = [name for name, n in members.items() if self.passed[n] < self.rounds]
            waiting = [name for name in coming if self.waits(members[name])]
            if opens(gate, self.ages.setdefault((rank, gate), {}), coming, waiting):
                for name in waiting:
                    self.passed[members[name]] += 1
        return self.passed[turn.place] > self.done[turn.place]

    def waits(self, n: int) -> bool:
        """Whether a member of a gate waits there."""
        return self.passed[n] == self.done[n] and self.met(n)


def _play_of(program: Program, rounds: int) -> tuple[_Play, list[_Line]]:
    ranks = [(role, rank) for role in program.roles for rank in role.ranks]
    place = {key: n for n, key in enumerate((rank, i.name) for role, rank in ranks for i in role.instructions)}
    turns, lines = list[_Turn](), list[_Line]()
    for role, rank in ranks:
        mine = {lane.name: _Line(f"rank {rank} {lane.name}", lane.policy is Policy.ORDER) for lane in role.lanes}
        for i in role.instructions:
            key, after = _transfer_key(role, i, rank), tuple((place[rank, a.name], a.rounds) for a in i.after)
            members = 1 if key is None else len(key[-1]) if isinstance(key[-1], tuple) else 2
            mine[i.lane].body.append(len(turns))
            turns.append(_Turn(len(turns), rank, mine[i.lane], i, role, after, key, members))
        lines += mine.values()
    return _Play(turns, rounds, place), lines


def _progress(program: Program) -> None:
    """Play the program with tokens for as many rounds as it looks back. Programs of up to 64 ranks only: the event
    clock finds the same in larger ones."""
    if program.size > 64:
        return
    play, lines = _play_of(program, program.drain + 3)
    turns, done = play.turns, play.done
    moved = True
    while moved:
        moved = False
        arrived: dict[TransferKey, dict[int, int]] = {}
        for line in lines:
            going = True
            while going:
                going = False
                for n in play.heads(line):
                    turn = turns[n]
                    if not play.met(n) or not (turn.instruction.gate is None or play.passes(turn)):
                        continue
                    here = {} if turn.key is None else arrived.setdefault(turn.key, {})
                    here[turn.rank] = n
                    if len(here) == turn.members:
                        going = True
                        for one in here.values():
                            done[one] += 1
                            turns[one].lane.ended += 1
                        here.clear()
                moved = moved or going
    stuck = [
        f"  {line.text}: {turns[line.body[line.ended % len(line.body)]].instruction.name} of round "
        f"{line.ended // len(line.body)}"
        for line in lines
        if line.ended < play.rounds * len(line.body)
    ]
    if stuck:
        raise ProgramError(f"{program.name} never finishes; waiting are\n" + "\n".join(stuck[:12]))


def _transfer_key(role: Role, i: Instruction, rank: int) -> TransferKey | None:
    """What identifies the collective or message that a rank's instruction takes part in; None for other
    instructions."""
    if isinstance(i.act, Send):
        return (i.act.key, rank, role.mine(i.act.to, rank))
    if isinstance(i.act, Receive):
        return (i.act.key, role.mine(i.act.source, rank), rank)
    if isinstance(i.act, Collective):
        return (i.name, next(g for g in i.act.groups if rank in g))
    return None
