"""A Program over several rounds as arrays of activities for the clock.

Instruction j of a role, in round t on its i-th rank, has index base + (t * instructions + j) * ranks + i. What moves
together, a collective on its members or a send with its receive, is one activity: `alias` maps each to the one that
stands for all. Lanes that go in order become edges; lanes that choose at run time are lanes to the clock as well.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from partita.cost.costs import Costs, ring_bytes
from partita.program.instruction import Collective, Instruction, Receive, Send
from partita.program.program import Policy, Program, Role
from partita.simulator.activities import Activities, assemble
from partita.simulator.ports import Ports

Index = NDArray[np.int64]


@dataclass(frozen=True)
class Layout:
    """Where the activities lie: by role the index of its first one and the place of each instruction."""

    program: Program
    rounds: int
    base: dict[str, int]
    place: dict[str, dict[str, int]]
    count: int

    def at(self, role: Role, name: str, ranks: NDArray[np.int64] | slice = slice(None)) -> Index:
        """Activities of an instruction, shape [rounds, ranks]; `ranks` are places in the role."""
        width = len(role.ranks)
        first = self.base[role.name] + self.place[role.name][name] * width
        per_rank = first + np.arange(width)[ranks]
        return per_rank[None, :] + np.arange(self.rounds)[:, None] * (len(role.instructions) * width)


@dataclass
class Draft:
    """Arrays being filled, private to one call of `expand`."""

    layout: Layout
    alias: Index
    latency: NDArray[np.float64]
    least: NDArray[np.float64]
    priority: NDArray[np.int64]
    edges: list[tuple[Index, Index]] = field(default_factory=list)
    lanes: list[tuple[Index, Index]] = field(default_factory=list)
    demands: list[tuple[Index, Index, NDArray[np.float64]]] = field(default_factory=list)

    def draw(self, activity: Index, resource: Index, amount: NDArray[np.float64] | float) -> None:
        activity, resource, amounts = np.broadcast_arrays(activity, resource, np.asarray(amount, np.float64))
        self.demands.append((activity.ravel(), resource.ravel(), amounts.ravel()))

    def compute(self, activity: Index, ranks: tuple[int, ...], work: NDArray[np.float64], ports: Ports) -> None:
        """Core-seconds on the processors of ranks, and on the cores that these share: an activity a rank, or one of
        all, which draws the sum of those that share cores."""
        self.draw(activity, np.array(ranks)[None, :], work)
        hosts = ports.host_of[list(ranks)]
        if activity.shape[1] == len(ranks):
            shared = np.flatnonzero(hosts >= 0)
            self.draw(activity[:, shared], hosts[shared][None, :], work[shared])
        else:
            for host in np.unique(hosts[hosts >= 0]):
                self.draw(activity, np.array([[host]]), work[hosts == host].sum())

    def join(self, a: Index, b: Index) -> None:
        """Edges from every activity of `a` to that of `b` at the same place."""
        self.edges.append((a.ravel(), b.ravel()))


def lay_out(program: Program, rounds: int) -> Layout:
    base, count = {}, 0
    for role in program.roles:
        base[role.name] = count
        count += rounds * len(role.instructions) * len(role.ranks)
    place = {role.name: {i.name: j for j, i in enumerate(role.instructions)} for role in program.roles}
    return Layout(program, rounds, base, place, count)


def expand(program: Program, costs: Costs, ports: Ports, rounds: int) -> tuple[Layout, Activities, Index]:
    """Layout, activities and alias of `rounds` rounds of a program."""
    layout = lay_out(program, rounds)
    n = layout.count
    draft = Draft(layout, np.arange(n), np.zeros(n), np.zeros(n), np.zeros(n, np.int64))
    need, guard = np.zeros(n, np.int32), np.full(n, -1, np.int32)
    for role in program.roles:
        _order(draft, role)
        for i in role.instructions:
            _instruction(draft, role, i, costs, ports, need, guard)
    _collectives(draft, program, costs, ports)
    _messages(draft, program, costs, ports)
    return layout, _assembled(draft, need, guard), draft.alias


def _order(draft: Draft, role: Role) -> None:
    """In-order lanes are chains through all rounds; the others are lanes that the clock hands out."""
    lane_base = len(draft.lanes) * max(len(r.ranks) for r in draft.layout.program.roles)
    for number, lane in enumerate(role.lanes):
        body = role.on(lane.name)
        if lane.policy is Policy.ORDER:
            for before, after in pairwise(body):
                draft.join(draft.layout.at(role, before.name), draft.layout.at(role, after.name))
            if body:
                draft.join(draft.layout.at(role, body[-1].name)[:-1], draft.layout.at(role, body[0].name)[1:])
        else:
            for i in body:
                mine = draft.layout.at(role, i.name)
                ids = lane_base + number * len(role.ranks) + np.arange(len(role.ranks))
                draft.lanes.append((mine.ravel(), np.broadcast_to(ids, mine.shape).ravel()))


def _instruction(
    draft: Draft, role: Role, i: Instruction, costs: Costs, ports: Ports, need: NDArray[np.int32],
    guard: NDArray[np.int32],
) -> None:  # fmt: skip
    mine = draft.layout.at(role, i.name)
    draft.priority[mine] = i.priority
    rounds = draft.layout.rounds
    for after in i.after:
        if after.rounds < rounds:
            draft.join(draft.layout.at(role, after.name)[: rounds - after.rounds], mine[after.rounds :])
    if i.need:
        need[mine] = i.need
    if i.unless is not None:
        guard[mine[i.unless.rounds :]] = draft.layout.at(role, i.unless.name)[: rounds - i.unless.rounds]
    if not isinstance(i.act, Collective | Send | Receive):
        demand = costs.demand(draft.layout.program, i.act, 1)
        work = demand.core / speeds(costs, role.ranks)
        draft.latency[mine], draft.least[mine] = demand.latency, work
        draft.compute(mine, role.ranks, work, ports)


def speeds(costs: Costs, ranks: tuple[int, ...]) -> NDArray[np.float64]:
    """How fast each rank's device is beside the one that the costs were measured on."""
    return np.array([costs.cluster.devices[rank].speed for rank in ranks], np.float64)


def _collectives(draft: Draft, program: Program, costs: Costs, ports: Ports) -> None:
    loads: dict[tuple[int, ...], tuple[NDArray[np.int32], NDArray[np.int32]]] = {}
    seen: set[tuple[str, tuple[int, ...]]] = set()
    for _, i in program.instructions():
        if not isinstance(i.act, Collective):
            continue
        for group in i.act.groups:
            if (i.name, group) in seen:
                continue
            seen.add((i.name, group))
            members = _members(draft.layout, program, i.name, group)
            lead = members[:, :1]
            draft.alias[members] = lead
            demand = costs.demand(program, i.act, len(group))
            work = demand.core / speeds(costs, group)
            hops = 2 * (len(group) - 1) * ports.latency(group)
            draft.latency[lead], draft.least[lead] = demand.latency + hops, work.max()
            draft.compute(lead, group, work, ports)
            bucket = program.bucket[i.act.bucket]
            sent = np.array(ring_bytes(bucket.elements, bucket.size // bucket.elements, len(group)), np.float64)
            member, resource = loads.setdefault(group, ports.loads(group))
            total = np.bincount(resource, sent[member], ports.resources.size) if len(group) > 1 else np.zeros(1)
            used = np.flatnonzero(total)
            draft.draw(lead, used[None, :], total[used][None, :].astype(np.float64))


def _members(layout: Layout, program: Program, name: str, group: tuple[int, ...]) -> Index:
    """Activities of a collective, shape [rounds, members], lowest rank first."""
    inside = set(group)
    parts, ranks = [], []
    for role in program.roles:
        places = np.array([p for p, rank in enumerate(role.ranks) if rank in inside], np.int64)
        if len(places):
            parts.append(layout.at(role, name, places))
            ranks += [role.ranks[p] for p in places]
    return np.concatenate(parts, axis=1)[:, np.argsort(ranks)]


def _messages(draft: Draft, program: Program, costs: Costs, ports: Ports) -> None:
    """A send and its receive are one activity of both processors and of every port between them."""
    ends: dict[tuple[str, int, int], list[tuple[Role, Instruction, int]]] = {}
    for role, i in program.instructions():
        for rank in role.ranks:
            if isinstance(i.act, Send):
                ends.setdefault((i.act.key, rank, role.mine(i.act.to, rank)), []).insert(0, (role, i, rank))
            elif isinstance(i.act, Receive):
                ends.setdefault((i.act.key, role.mine(i.act.source, rank), rank), []).append((role, i, rank))
    for (_, source, target), both in ends.items():
        columns = [draft.layout.at(role, i.name, np.array([role.place[rank]])) for role, i, rank in both]
        lead, ends_of = columns[0], (source, target)
        asked = [costs.demand(program, i.act, 2) for _, i, _ in both]
        work = np.array([one.core for one in asked]) / speeds(costs, ends_of)
        draft.latency[lead] += sum(one.latency for one in asked)
        draft.least[lead] = work.max()
        draft.compute(lead, ends_of, work, ports)
        for column in columns:
            draft.alias[column] = lead
        act = both[0][1].act
        assert isinstance(act, Send)
        draft.latency[lead] += ports.latency((source, target))
        draft.draw(lead, np.array([ports.hops(source, target)], np.int64), float(program.bucket[act.bucket].size))


def _assembled(draft: Draft, need: NDArray[np.int32], guard: NDArray[np.int32]) -> Activities:
    alias, n = draft.alias, draft.layout.count
    before, after = (
        np.concatenate([e[k] for e in draft.edges]) if draft.edges else np.zeros(0, np.int64) for k in (0, 1)
    )
    before, after = alias[before], alias[after]
    pairs = np.unique(before * n + after)
    before, after = pairs // n, pairs % n
    all_of = np.bincount(after, minlength=n).astype(np.int32)
    lanes = [np.concatenate([x[k] for x in draft.lanes]) if draft.lanes else np.zeros(0, np.int64) for k in (0, 1)]
    activity, resource, amount = (np.concatenate([d[k] for d in draft.demands]) for k in (0, 1, 2))
    return assemble(
        n,
        edges=(before.astype(np.int32), after.astype(np.int32)),
        lanes=(alias[lanes[0]].astype(np.int32), lanes[1].astype(np.int32)),
        demands=(activity.astype(np.int32), resource.astype(np.int32), amount.astype(np.float64)),
        need=np.where(need > 0, np.minimum(need, all_of), all_of).astype(np.int32),
        priority=draft.priority,
        latency=draft.latency,
        least=draft.least,
        guard=guard,
    )
