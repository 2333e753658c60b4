"""A Program over several rounds as arrays of activities for the clock.

One round is laid out, then repeated. Seat base + j * width + k is instruction j of a role on its k-th kind of rank:
ranks that are alike have one seat. What moves together, a collective on its members or a send with its receive, is one
activity. Lanes that go in order become edges; lanes that choose at run time are lanes to the clock as well.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from partita.arrays import Array, Flags, Ints, Reals
from partita.cost.prices import Prices
from partita.program.flight import in_flight
from partita.program.program import Policy, Program, Role
from partita.simulator.activities import Activities, Demands, GateSpec, Places, assemble
from partita.simulator.ports import Ports
from partita.simulator.symmetry import Symmetry, folded
from partita.simulator.transfers import Transfers, unrolled


@dataclass(frozen=True, eq=False)
class Layout:
    """Where the activities lie: activity `number[seat]` + t * `count` is that of a seat in round t."""

    program: Program
    rounds: int
    symmetry: Symmetry
    number: Ints
    count: int

    @cached_property
    def base(self) -> dict[str, int]:
        """The first seat of each role."""
        sizes = [len(role.instructions) * len(self.kinds[role.name]) for role in self.program.roles]
        starts = np.cumsum([0, *sizes])[:-1]
        return {role.name: int(start) for role, start in zip(self.program.roles, starts, strict=True)}

    @cached_property
    def kinds(self) -> dict[str, Ints]:
        """The first rank of each kind of a role."""
        return {role.name: np.unique(self.symmetry.rank[list(role.ranks)]) for role in self.program.roles}

    def kind(self, role: Role) -> Ints:
        """Which kind each rank of the role is of."""
        return np.searchsorted(self.kinds[role.name], self.symmetry.rank[list(role.ranks)])

    def seats(self, role: Role) -> Ints:
        """Seats of a role, shape [instructions, kinds]."""
        shape = len(role.instructions), len(self.kinds[role.name])
        return self.base[role.name] + np.arange(shape[0] * shape[1]).reshape(shape)

    def at(self, role: Role) -> Ints:
        """Activities of a role, shape [rounds, instructions, kinds]."""
        return self.number[self.seats(role)] + np.arange(self.rounds)[:, None, None] * self.count


@dataclass(eq=False)
class RoundDraft:
    """One round while it is filled; private to one call of `expand`.

    latency, least, priority, need  a number for each seat, as in `activities.Activities`
    member                          which member of a gate each seat is, -1 for none
    edges                           columns (before, after, rounds between)
    guards                          columns (seat, its guard, rounds between)
    lanes                           columns (seat, lane, weight, the seat until whose end it is held)
    credit                          of each lane
    demands                         columns (seat, resource, amount, times, again)
    gates                           of all roles
    """

    latency: Reals
    least: Reals
    priority: Ints
    need: Ints
    member: Ints
    edges: list[tuple[Ints, Ints, Ints]] = field(default_factory=list)
    guards: list[tuple[Ints, Ints, Ints]] = field(default_factory=list)
    lanes: list[tuple[Ints, Ints, Reals, Ints]] = field(default_factory=list)
    credit: list[float] = field(default_factory=list)
    demands: list[tuple[Ints, Ints, Reals, Reals, Flags]] = field(default_factory=list)
    gates: list[GateSpec] = field(default_factory=list)


def expand(
    program: Program, prices: Prices, ports: Ports, transfers: Transfers, symmetry: Symmetry, rounds: int
) -> tuple[Layout, Activities]:
    """`rounds` rounds of a program at these prices, of which the first rank of each kind is moved for all."""
    seats = sum(len(role.instructions) * len(np.unique(symmetry.rank[list(role.ranks)])) for role in program.roles)
    layout = Layout(program, rounds, symmetry, np.arange(seats), seats)
    zeros = np.zeros(seats, np.int64)
    draft = RoundDraft(np.zeros(seats), np.zeros(seats), zeros, zeros.copy(), zeros - 1)
    for role in program.roles:
        _work(draft, layout, role, prices, ports)
        _waits(draft, layout, role)
        _choices(draft, layout, role)
        _gates(draft, layout, role)
    host, number = _together(draft, layout, transfers)
    return Layout(program, rounds, symmetry, number, len(host)), _repeated(draft, host, number, rounds)


def _work(draft: RoundDraft, layout: Layout, role: Role, prices: Prices, ports: Ports) -> None:
    """What each instruction asks of its own processor and of the cores that this shares with others."""
    seats, ranks = layout.seats(role), layout.kinds[role.name]
    alone = list(role.computing)
    latency = np.array([demand.latency for demand in prices.of_role(role)], np.float64) * alone
    work = prices.seconds(role, ranks.tolist()) * np.array(alone, np.float64)[:, None]
    draft.latency[seats], draft.least[seats] = latency[:, None], work
    own = work[alone].ravel()
    for place in (ranks, ports.host_of[ranks]):
        resource = np.tile(place, sum(alone))
        drawn = resource >= 0
        once = np.ones(int(drawn.sum()))
        draft.demands.append((seats[alone].ravel()[drawn], resource[drawn], own[drawn], once, once < 1))


def _waits(draft: RoundDraft, layout: Layout, role: Role) -> None:
    """What each instruction waits for: `after`, and in lanes that go in order the one before it, through all rounds."""
    place, seats = {i.name: j for j, i in enumerate(role.instructions)}, layout.seats(role)
    edges = [(place[a.name], j, a.rounds) for j, i in enumerate(role.instructions) for a in i.after]
    for lane in role.lanes:
        body = [place[i.name] for i in role.on(lane.name)] if lane.policy is Policy.ORDER else []
        edges += [(before, after, 0) for before, after in pairwise(body)]
        edges += [(body[-1], body[0], 1)] if body else []
    guards = [(j, place[i.unless.name], i.unless.rounds) for j, i in enumerate(role.instructions) if i.unless]
    for rows, found in ((edges, draft.edges), (guards, draft.guards)):
        one, other, rounds = np.array(rows, np.int64).reshape(-1, 3).T
        found.append((seats[one].ravel(), seats[other].ravel(), np.repeat(rounds, seats.shape[1])))
    draft.priority[seats] = np.array([i.priority for i in role.instructions], np.int64)[:, None]
    draft.need[seats] = np.array([i.need for i in role.instructions], np.int64)[:, None]


def _choices(draft: RoundDraft, layout: Layout, role: Role) -> None:
    """Lanes that choose at run time, one for each kind; with a credit bytes are taken from it, else the one place."""
    place, seats = {i.name: j for j, i in enumerate(role.instructions)}, layout.seats(role)
    for lane in role.lanes:
        body = role.on(lane.name) if lane.policy is not Policy.ORDER else ()
        if body:
            mine = seats[[place[i.name] for i in body]]
            last = seats[[place[i.until or i.name] for i in body]]
            bytes_ = [in_flight(layout.program, role, i) if lane.credit else 1 for i in body]
            number = len(draft.credit) + np.arange(mine.shape[1])
            weight = np.repeat(np.array(bytes_, np.float64), mine.shape[1])
            draft.lanes.append((mine.ravel(), np.tile(number, len(mine)), weight, last.ravel()))
            draft.credit += [float(lane.credit or 1)] * mine.shape[1]


def _gates(draft: RoundDraft, layout: Layout, role: Role) -> None:
    """The gates of a role, one for each kind."""
    place, seats = {i.name: j for j, i in enumerate(role.instructions)}, layout.seats(role)
    for gate, names in role.gates.items():
        for mine in seats[[place[name] for name in names]].T:
            first = sum(members for members, _, _ in draft.gates)
            draft.member[mine] = first + np.arange(len(mine))
            draft.gates.append((len(mine), gate.need or len(mine), gate.within))


def _together(draft: RoundDraft, layout: Layout, transfers: Transfers) -> tuple[Ints, Ints]:
    """Add what transfers take. The seats that stand for all who take part, one for each activity; each seat's
    activity."""
    program, moved = layout.program, unrolled(folded(transfers, layout.symmetry))
    ranks, slots = np.zeros(program.size, np.int64), []
    for role in program.roles:
        ranks[list(role.ranks)] = layout.kind(role)
        slots += layout.seats(role)[:, 0].tolist()
    seat = np.array(slots, np.int64)[moved.slots[moved.slot]] + ranks[moved.rank]
    host = np.full(len(moved.latency), -1)
    host[moved.who[::-1]] = seat[::-1]
    held = np.flatnonzero(host >= 0)
    draft.latency[host[held]], draft.least[host[held]] = moved.latency[held], moved.least[held]
    draft.demands.append((host[moved.at], moved.resource, moved.amount, moved.times, moved.again))
    stands = np.arange(layout.count)
    stands[seat] = host[moved.who]
    return np.unique(stands, return_inverse=True)


def _repeated(draft: RoundDraft, host: Ints, number: Ints, rounds: int) -> Activities:
    """The round as activities, `rounds` times, those of each round after those of the one before."""
    turn, count = np.arange(rounds)[:, None], len(host)
    before, after, ago = _columns(draft.edges, 3)
    codes = np.unique((number[before] * count + number[after]) * (rounds + 1) + np.minimum(ago, rounds))
    before, after, ago = codes // (rounds + 1) // count, codes // (rounds + 1) % count, codes % (rounds + 1)
    kept = (turn + ago < rounds).ravel()
    edges = [(x + turn * count).ravel()[kept].astype(np.int32) for x in (before, after + ago * count)]
    one, guard, ago = _columns(draft.guards, 3)
    guards = np.full(rounds * count, -1, np.int32)
    ours, past = np.broadcast_to(number[one] + turn * count, (rounds, len(one))), turn >= ago
    guards[ours[past]] = (number[guard] + (turn - ago) * count)[past]
    all_of, need = np.bincount(edges[1], minlength=rounds * count), np.tile(draft.need[host], rounds)
    lane, resource = _columns(draft.lanes, 4), _columns(draft.demands, 5)
    order = np.argsort(number[resource[0]], kind="stable")
    mine = number[resource[0][order]]
    return assemble(
        rounds * count,
        edges=(edges[0], edges[1]),
        places=Places(
            (number[lane[0]] + turn * count).ravel().astype(np.int32),
            np.tile(lane[1], rounds).astype(np.int32),
            np.tile(lane[2], rounds).astype(np.float64),
            until=(number[lane[3]] + turn * count).ravel().astype(np.int32),
            credit=np.array(draft.credit, np.float64),
        ),
        demands=Demands(
            (mine + turn * count).ravel().astype(np.int32),
            np.tile(resource[1][order], rounds).astype(np.int32),
            np.tile(resource[2][order], rounds).astype(np.float64),
            times=np.tile(resource[3][order], rounds).astype(np.float64),
            again=np.tile(resource[4][order], rounds).astype(np.bool_),
        ),
        need=np.where(need > 0, np.minimum(need, all_of), all_of).astype(np.int32),
        priority=np.tile(draft.priority[host], rounds),
        latency=np.tile(draft.latency[host], rounds),
        least=np.tile(draft.least[host], rounds),
        guard=guards,
        gates=(np.tile(draft.member[host], rounds).astype(np.int32), draft.gates),
    )


def _columns(parts: list[Any], width: int) -> list[Array]:
    """Columns of lists of columns, end to end."""
    return [np.concatenate([part[k] for part in parts]) if parts else np.zeros(0, np.int64) for k in range(width)]
