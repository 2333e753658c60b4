"""A Program played with tokens, without time: whether every lane comes to its end.

A turn is an instruction of one rank. It is done when what it waits for is done, its gate is open, and all who take part
in its message or collective have come to theirs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from partita.program.gate import Gate, opens
from partita.program.instruction import Collective, Instruction, Receive, Send
from partita.program.program import Policy, Program, Role

# What tells transfers apart: a message by (key, source, target), a collective by (name, members).
TransferKey: TypeAlias = tuple[str, int, int] | tuple[str, tuple[int, ...]]


def stuck_lanes(program: Program, rounds: int) -> list[str]:
    """The lanes that never finish so many rounds, each with the instruction that it waits at; empty if all do."""
    play, lines = _play_of(program, rounds)
    moved = True
    while moved:
        moved = False
        arrived: dict[TransferKey, dict[int, int]] = {}
        for line in lines:
            while play.go_on(line, arrived):
                moved = True
    return [
        f"  {line.text}: {play.turns[line.body[line.ended % len(line.body)]].instruction.name} of round "
        f"{line.ended // len(line.body)}"
        for line in lines
        if line.ended < rounds * len(line.body)
    ]


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

    def go_on(self, line: _Line, arrived: dict[TransferKey, dict[int, int]]) -> bool:
        """Whether a turn of a lane's next ones could be done, and is now; those that wait for others of their transfer
        are noted in `arrived`, by rank."""
        going = False
        for n in self.heads(line):
            turn = self.turns[n]
            if not self.met(n) or not (turn.instruction.gate is None or self.passes(turn)):
                continue
            here = {} if turn.key is None else arrived.setdefault(turn.key, {})
            here[turn.rank] = n
            if len(here) == turn.members:
                going = True
                for one in here.values():
                    self.done[one] += 1
                    self.turns[one].lane.ended += 1
                here.clear()
        return going

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
