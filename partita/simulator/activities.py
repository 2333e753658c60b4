"""What the clock moves: activities that wait, occupy lanes and draw on resources, all as arrays.

predecessors ---need---> ready ---its lanes free---> start |-latency-|---- demands flow ----| end ---> successors
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from partita.arrays import Flags, Indices, Ints, Reals
from partita.errors import ProgramError

Offsets: TypeAlias = Ints
GateSpec: TypeAlias = tuple[int, int, int]  # members of a gate, how many it needs, and within how many times each


@dataclass(frozen=True, slots=True, eq=False)
class Activities:
    """n activities, each with a number in arrays of shape [n]; the entries of activity i in a list `x` are
    `x[x_start[i] : x_start[i + 1]]`, where `x_start` has shape [n + 1]. Raises ProgramError where they contradict each
    other.

    need         so many predecessors must have finished before it is ready
    successor    activities of which it is a predecessor
    lane         lanes that it occupies while it runs: it starts while anything of the `lane_credit` of each is left,
                 and takes `lane_weight` of it (1 of 1: one activity at a time)
    freed        lanes to which its end gives back `freed_weight`: its own, unless another one's end does so
    priority     orders those that wait for a lane, lowest first
    latency      seconds that pass with the lanes held before the demands flow
    least        seconds that the demands take then, or more
    demand       it consumes `demand_amount` of `demand_resource` in all, in that resource's units, and moves through
                 all its demands at one rate. Where it stands for activities that are alike it counts as `demand_times`
                 users, and demands of one resource that differ come side by side; `demand_again`: the resource stands
                 for others, and it draws as much on another one like it
    guard        an activity, or -1: if that one has finished when this becomes ready, this ends at once, without lanes
    member       a member of a gate, or -1: what is ready waits there until the gate opens (`program.gate`); gate g has
                 the members from gate_start[g] to gate_start[g + 1], and opens by its `gate_need` and `gate_within`
    """

    need: Indices
    successor_start: Offsets
    successor: Indices
    lane_start: Offsets
    lane: Indices
    lane_weight: Reals
    lane_credit: Reals
    freed_start: Offsets
    freed: Indices
    freed_weight: Reals
    priority: Ints
    latency: Reals
    least: Reals
    demand_start: Offsets
    demand_resource: Indices
    demand_amount: Reals
    demand_times: Reals
    demand_again: Flags
    guard: Indices
    member: Indices
    gate_start: Offsets
    gate_need: Ints
    gate_within: Ints

    def __post_init__(self) -> None:
        n = self.size
        per_activity = (self.priority, self.latency, self.least, self.guard, self.member)
        lists = (
            ("successor", self.successor_start, self.successor, n),
            ("lane", self.lane_start, self.lane, len(self.lane_credit)),
            ("freed", self.freed_start, self.freed, len(self.lane_credit)),
            ("demand", self.demand_start, self.demand_resource, None),
        )
        if any(len(values) != n for values in per_activity) or any(
            len(values) != len(self.demand_resource)
            for values in (self.demand_amount, self.demand_times, self.demand_again)
        ):
            raise ProgramError(f"{n} activities have arrays of other lengths; give each array one entry an activity")
        for name, start, entries, below in lists:
            if len(start) != n + 1 or start[0] != 0 or start[-1] != len(entries) or (np.diff(start) < 0).any():
                raise ProgramError(f"the offsets of the {name} list do not cover it; build them with `assemble`")
            _check_range(name, entries, 0, below)
        _check_range("guard", self.guard, -1, n)
        _check_range("member", self.member, -1, int(self.gate_start[-1]))
        if not all((values >= 0).all() and np.isfinite(values).all() for values in (self.latency, self.least)):
            raise ProgramError("a latency or a least duration is negative or not finite; give seconds of 0 or more")
        if not ((self.demand_amount > 0).all() and np.isfinite(self.demand_amount).all()):
            raise ProgramError("a demanded amount is not above 0 and finite; leave out demands of nothing")
        if not ((self.demand_times >= 1).all() and np.isfinite(self.demand_times).all()):
            raise ProgramError("a demand counts fewer than one user; give 1 or more")

    @property
    def size(self) -> int:
        """How many activities there are."""
        return len(self.need)

    def longer(self, latency: Reals, amount: Reals) -> Activities:
        """These activities, each with so many more seconds of latency, and so much more of all that it demands."""
        demanded = self.demand_amount + np.repeat(amount, np.diff(self.demand_start))
        return replace(self, latency=self.latency + latency, least=self.least + amount, demand_amount=demanded)


@dataclass(frozen=True, slots=True, eq=False)
class Resources:
    """m token buckets: `rate` units a second for good, `peak` while tokens last, `burst` tokens when full.

    A bucket starts full, loses what is used beyond `rate` and refills with what is left of it. Where `peak` equals
    `rate`, or `burst` is 0, it is a plain capacity of `rate`. Raises ProgramError for a rate of 0 or a lower peak.
    """

    rate: Reals
    peak: Reals
    burst: Reals

    def __post_init__(self) -> None:
        if not len(self.rate) == len(self.peak) == len(self.burst):
            raise ProgramError("rate, peak and burst differ in length; give each resource one of each")
        if not ((self.rate > 0).all() and (self.peak >= self.rate).all() and np.isfinite(self.peak).all()):
            raise ProgramError("a resource's rate is not above 0, or its peak below its rate; give 0 < rate <= peak")
        if not (self.burst >= 0).all():
            raise ProgramError("a resource's burst is negative; give 0 or more units")

    @property
    def size(self) -> int:
        """How many resources there are."""
        return len(self.rate)


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """Which activity occupies which lane, as pairs in any order: a `weight` of the lane's `credit` each (1 of 1), held
    `until` another activity ends (its own end). `credit` has an entry a lane, the others one a pair."""

    activity: Indices
    lane: Indices
    weight: Reals | None = None
    until: Indices | None = None
    credit: Reals | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Demands:
    """Which activity draws how much on which resource, as rows in any order, each counting as `times` users (1), and
    `again` on another resource like it (it does not). Amounts of 0 are none."""

    activity: Indices
    resource: Indices
    amount: Reals
    times: Reals | None = None
    again: Flags | None = None


def assemble(
    count: int,
    *,
    edges: tuple[Indices, Indices],
    places: Places,
    demands: Demands,
    need: Indices | None = None,
    priority: Offsets | None = None,
    latency: Reals | None = None,
    least: Reals | None = None,
    guard: Indices | None = None,
    gates: tuple[Indices, Sequence[GateSpec]] | None = None,
) -> Activities:
    """`count` activities from what they have to do with each other, `edges` being pairs (predecessor, successor) in any
    order; `latency` and `least` are seconds, `gates` each one's member and what the gates are. Defaults: need all,
    priority 0, 0 s, 0 s, no guard, no gate. Raises ProgramError for an index out of range, a time below 0 and arrays of
    other lengths."""
    successor_start, (successor,) = _rows(count, edges[0], edges[1])
    weights = np.ones(len(places.lane)) if places.weight is None else places.weight
    credit = np.ones(int(places.lane.max(initial=-1)) + 1) if places.credit is None else places.credit
    lane_start, (lane, lane_weight) = _rows(count, places.activity, places.lane, weights)
    until = places.activity if places.until is None else places.until
    freed_start, (freed, freed_weight) = _rows(count, until, places.lane, weights)
    demand_start, (resource, amount, times, again) = _flows(count, demands)
    member, opened = gates or (np.full(count, -1, np.int32), ())
    return Activities(
        need=np.bincount(edges[1], minlength=count).astype(np.int32) if need is None else need,
        successor_start=successor_start,
        successor=successor.astype(np.int32),
        lane_start=lane_start,
        lane=lane.astype(np.int32),
        lane_weight=lane_weight.astype(np.float64),
        lane_credit=credit.astype(np.float64),
        freed_start=freed_start,
        freed=freed.astype(np.int32),
        freed_weight=freed_weight.astype(np.float64),
        priority=np.zeros(count, np.int64) if priority is None else priority,
        latency=np.zeros(count) if latency is None else latency,
        least=np.zeros(count) if least is None else least,
        demand_start=demand_start,
        demand_resource=resource.astype(np.int32),
        demand_amount=amount.astype(np.float64),
        demand_times=times.astype(np.float64),
        demand_again=again.astype(np.bool_),
        guard=np.full(count, -1, np.int32) if guard is None else guard,
        member=member,
        gate_start=np.cumsum([0, *(members for members, _, _ in opened)]).astype(np.int64),
        gate_need=np.array([need for _, need, _ in opened], np.int64),
        gate_within=np.array([within for _, _, within in opened], np.int64),
    )


def resources_of(rows: Sequence[tuple[float, float, float]]) -> Resources:
    """Resources from (rate, peak, burst) triples."""
    table = np.array(rows, np.float64).reshape(-1, 3)
    return Resources(table[:, 0].copy(), table[:, 1].copy(), table[:, 2].copy())


def _flows(count: int, demands: Demands) -> tuple[Offsets, list[NDArray[np.generic]]]:
    """Resource, amount, users and `again` of what is demanded, by activity, as `_rows`."""
    flows = demands.amount != 0
    times = np.ones(len(flows)) if demands.times is None else demands.times
    again = np.zeros(len(flows), np.bool_) if demands.again is None else demands.again
    columns = demands.activity, demands.resource, demands.amount, times, again
    return _rows(count, *(column[flows] for column in columns))


def _rows(count: int, row: Indices, *columns: NDArray[np.generic]) -> tuple[Offsets, list[NDArray[np.generic]]]:
    """Columns sorted by row, each row's entries in the order given, and where every row begins."""
    _check_range("activity", row, 0, count)
    start = np.zeros(count + 1, np.int64)
    np.cumsum(np.bincount(row, minlength=count), out=start[1:])
    if (row[1:] >= row[:-1]).all():
        return start, list(columns)
    order = np.argsort(row, kind="stable")
    return start, [column[order] for column in columns]


def _check_range(name: str, values: Indices, least: int, below: int | None) -> None:
    if len(values) and (values.min() < least or (below is not None and values.max() >= below)):
        bound = "any number" if below is None else str(below)
        raise ProgramError(
            f"a {name} index lies in {values.min()}..{values.max()}, but must be from {least} to below {bound}"
        )
