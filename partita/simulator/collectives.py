"""The collectives of one round as transfers: each group's a transfer of its own.

microbatch 0   Z0#0 ---- Z1#0 ----      what one of them takes is worked out once, and told of all
           1        Z0#1 ---- Z1#1 ---
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np

from partita.arrays import Ints, Reals
from partita.cost.costs import Costs
from partita.cost.demand import demand_of
from partita.cost.prices import Prices
from partita.cost.rings import collective_bytes
from partita.cost.wiring import Circle, Post, circle_of
from partita.program.instruction import Collective
from partita.program.program import Program, Role
from partita.simulator.hops import Columns, scheduled
from partita.simulator.ports import Ports
from partita.wire.algorithms import by_hops

Groups = tuple[tuple[int, ...], ...]
Key = tuple[tuple[Groups, ...], Collective, Post]


@dataclass(frozen=True)
class Rings:
    """Rings of ranks: entry k says that `rank[k]` is `place[k]` in ring `ring[k]`, sending to `target[k]`; `role` has
    the number of each rank's role."""

    groups: Groups
    ports: Ports
    role: Ints

    @cached_property
    def members(self) -> tuple[Ints, Ints, Ints, Ints]:
        """(ring, rank, place, target) of every member, ring after ring."""
        sizes = self.sizes
        ring = np.repeat(np.arange(len(sizes)), sizes)
        rank = np.array([rank for group in self.groups for rank in group], np.int64)
        start = np.cumsum(sizes) - sizes
        place = np.arange(len(rank)) - start[ring]
        return ring, rank, place, rank[start[ring] + (place + 1) % sizes[ring]]

    @cached_property
    def sorted_members(self) -> tuple[Ints, Ints, Ints]:
        """(ring, rank, the rank's role) of every member, sorted."""
        ring, rank, _, _ = self.members
        order = np.lexsort((rank, ring))
        return ring[order], rank[order], self.role[rank[order]]

    @cached_property
    def sizes(self) -> Ints:
        """Ranks of each ring."""
        return np.array([len(group) for group in self.groups], np.int64)

    @cached_property
    def circles(self) -> tuple[Circle, ...]:
        """The Circle of each ring, with its longest way between neighbours."""
        return tuple(
            replace(circle_of(group, self.ports.cluster), way=way)
            for group, way in zip(self.groups, self.longest.tolist(), strict=True)
        )

    @cached_property
    def longest(self) -> Reals:
        """Seconds of the longest way between neighbours of each ring."""
        ring, rank, _, target = self.members
        found = np.zeros(len(self.groups))
        np.maximum.at(found, ring, self.ports.routes(rank, target)[2])
        return found

    @cached_property
    def loads(self) -> tuple[Ints, Ints, Ints, Ints]:
        """(ring, resource) of all that they pass, and by (member, entry) pairs which of these each message passes."""
        ring, rank, _, target = self.members
        member, resource, _ = self.ports.routes(rank, target)
        total = self.ports.resources.size
        passed, entry = np.unique(ring[member] * total + resource, return_inverse=True)
        return passed // total, passed % total, member, entry


def flowing(columns: Columns) -> Columns:
    """The columns without demands of 0."""
    flows = columns["amount"].astype(np.float64) > 0
    return columns | {name: columns[name][flows] for name in ("at", "resource", "amount", "times") if name in columns}


@dataclass
class Alike:
    """Collectives that are alike in all but their names: what one of them `took` among its rings, and the `slots` of
    each by role. Lives for one call of `collectives`."""

    rings: Rings
    took: Columns
    slots: list[Ints] = field(default_factory=list)

    def columns(self) -> Columns:
        """Those of one, of which the others are copies."""
        ring, rank, role = self.rings.sorted_members
        many = len(self.slots)
        return self.took | {
            "copies": np.full(len(self.rings.groups), many), "size": self.took["size"] * many,
            "who": ring, "rank": rank, "slot": role * many, "slots": np.array(self.slots).T.ravel(),
        }  # fmt: skip


def collectives(
    prices: Prices, ports: Ports, slots: dict[str, dict[str, int]], speed: Reals, handling: Reals, role: Ints
) -> Iterator[Columns]:
    """The collectives of a round as columns of Transfers, a part for each kind. `slots` are the slots of each role's
    instructions by name; `speed` in computing, in `handling` messages, and `role` are by rank."""
    yield from (one.columns() for one in _alike(prices, ports, slots, speed, handling, role))


def _alike(
    prices: Prices, ports: Ports, slots: dict[str, dict[str, int]], speed: Reals, handling: Reals, role: Ints
) -> Collection[Alike]:  # fmt: skip
    program, costs = prices.program, prices.costs
    numbers = {role.name: number for number, role in enumerate(program.roles)}
    posts = {role.name: prices.post(role) for role in program.roles}
    by_name: dict[str, list[tuple[Role, Collective]]] = {}
    for one, i in program.instructions():
        if isinstance(i.act, Collective):
            by_name.setdefault(i.name, []).append((one, i.act))
    known: dict[tuple[Groups, ...], Rings] = {}
    alike: dict[Key, Alike] = {}
    met: dict[tuple[int, ...], Alike] = {}  # by the acts themselves, which microbatches share: nothing large is hashed
    for name, acts in by_name.items():
        same = tuple(id(act) for _, act in acts)
        if same not in met:
            key, act = tuple(dict.fromkeys(act.groups for _, act in acts)), acts[0][1]
            if key not in known:
                known[key] = Rings(tuple(dict.fromkeys(group for groups in key for group in groups)), ports, role)
            post = posts[acts[0][0].name]
            if (key, act, post) not in alike:
                took = partial(_in_hops, speed=speed) if by_hops(act) else partial(_in_rings, post=post)
                columns = took(program, act, costs, ports, handling, known[key])
                alike[key, act, post] = Alike(known[key], flowing(columns))
            met[same] = alike[key, act, post]
        slot = np.full(len(program.roles), -1, np.int64)
        for one, _ in acts:
            slot[numbers[one.name]] = slots[one.name][name]
        met[same].slots.append(slot)
    return alike.values()


def _in_rings(
    program: Program, act: Collective, costs: Costs, ports: Ports, handling: Reals, rings: Rings, *, post: Post
) -> Columns:  # fmt: skip
    """What a ring takes in each group: as a whole, for it may have thousands of ranks."""
    ring, rank, place, target = rings.members
    at, resource, member, entry = rings.loads
    demands = {circle: demand_of(costs, program, act, circle, post) for circle in set(rings.circles)}
    parts = {circle: costs.carried(program, act, circle) for circle in demands}
    sent = np.zeros(len(rank))
    for p in np.unique(rings.sizes).tolist():
        ours = rings.sizes[ring] == p
        sent[ours] = np.array(collective_bytes(program, act, p))[place[ours]]
    core, wait, part = np.array(
        [(demands[circle].core, demands[circle].latency, parts[circle]) for circle in rings.circles]
    ).T
    work = core[ring] / handling[rank]
    least = np.zeros(len(core))
    np.maximum.at(least, ring, work)
    return {
        "latency": wait, "least": least,
        "at": np.concatenate([ring, at]), "resource": np.concatenate([rank, resource]),
        "amount": np.concatenate([work, part[at] * np.bincount(entry, sent[member], len(at))]),
        "source": rank, "target": target, "size": sent,
    }  # fmt: skip


def _in_hops(
    program: Program, act: Collective, costs: Costs, ports: Ports, handling: Reals, rings: Rings, *, speed: Reals
) -> Columns:  # fmt: skip
    """What any other schedule takes in each group."""
    parts = [scheduled(program, act, group, costs, ports, speed, handling) for group in rings.groups]
    parts = [part | {"at": part["at"] + number} for number, part in enumerate(parts)]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
