"""The clock's twin: the same laws as `clock.advance`, written to be read, recomputing everything at every moment."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import Any

import numpy as np

from partita.errors import ProgramError
from partita.program.gate import Gate, opens
from partita.simulator.activities import Activities, Flags, Indices, Offsets, Reals, Resources
from partita.units import Seconds

MOMENT = 1e-12
TIE = 1e-12
FULL = 1e-11
SLACK = 1e-9
FREE = 20
ROUNDS = 200


@dataclass(slots=True)
class Twin:
    """One activity; `start` is when it became ready until it has started, `speed` the work done a second (all is 1)."""

    index: int
    missing: int
    successors: list[int]
    lanes: list[int]
    weights: list[float]
    freed: list[tuple[int, float]]
    priority: int
    latency: Seconds
    least: Seconds
    demands: list[tuple[int, float, float, bool]]
    guard: int
    member: int
    state: str = "blocked"
    start: Seconds = inf
    end: Seconds = inf
    speed: float = 0.0
    remaining: float = 1.0
    event: Seconds = inf
    began: bool = False

    @property
    def key(self) -> tuple[int, Seconds, int]:
        return self.priority, self.start, self.index


@dataclass(slots=True)
class Bucket:
    """One resource; `tokens` is what its bucket holds, `use` the units a second drawn now."""

    rate: float
    peak: float
    burst: float
    tokens: float = field(default=0.0)
    use: float = 0.0

    @property
    def bursts(self) -> bool:
        return self.burst > 0 and self.peak > self.rate

    @property
    def capacity(self) -> float:
        return self.peak if self.bursts and self.tokens > 0 else self.rate

    @property
    def spill(self) -> float:
        """Tokens lost a second; a use within SLACK of the rate loses none."""
        return 0.0 if abs(self.use - self.rate) <= SLACK * self.rate else self.use - self.rate

    @property
    def dry(self) -> Seconds:
        """Seconds until the tokens run out."""
        return self.tokens / self.spill if self.bursts and self.tokens > 0 and self.spill > 0 else inf


def advance_plainly(activities: Activities, resources: Resources) -> tuple[Reals, Reals]:
    """(start, end) seconds of every activity, as `clock.advance`; raises ProgramError likewise."""
    twins = [_twin(activities, i) for i in range(activities.size)]
    doors = _doors(activities, twins)
    buckets = [Bucket(*map(float, row)) for row in zip(resources.rate, resources.peak, resources.burst, strict=True)]
    for bucket in buckets:
        bucket.tokens = bucket.burst
    time = 0.0
    ready = [twin for twin in twins if twin.missing <= 0]
    ended: list[Twin] = []
    while True:
        _react(twins, ready, ended, doors, activities.lane_credit, time)
        flowing = [twin for twin in twins if twin.state == "flowing"]
        share(flowing, buckets)
        for twin in flowing:
            twin.event = time + max(twin.remaining, 0.0) / twin.speed
        waiting = [twin.event for twin in twins if twin.state in ("delayed", "flowing")]
        upcoming = min([*waiting, *(time + bucket.dry for bucket in buckets)], default=inf)
        if upcoming == inf:
            break
        drained = [b for b in buckets if time + b.dry <= upcoming * (1 + MOMENT)]
        for bucket in buckets:
            bucket.tokens = min(bucket.burst, max(0.0, bucket.tokens - bucket.spill * (upcoming - time)))
        for bucket in drained:
            bucket.tokens = 0.0
        for twin in flowing:
            twin.remaining -= twin.speed * (upcoming - time)
        time, ready = upcoming, []
        ended = [twin for twin in twins if _happens(twin, time)]
    stuck = [twin.index for twin in twins if twin.end == inf]
    if stuck:
        raise ProgramError(f"activities {stuck} never finish")
    return np.array([twin.start for twin in twins]), np.array([twin.end for twin in twins])


def _twin(activities: Activities, i: int) -> Twin:
    def entries(start: Offsets, values: Indices | Reals | Flags) -> list[Any]:
        return [value.item() for value in values[start[i] : start[i + 1]]]

    return Twin(
        index=i,
        missing=int(activities.need[i]),
        successors=entries(activities.successor_start, activities.successor),
        lanes=entries(activities.lane_start, activities.lane),
        weights=entries(activities.lane_start, activities.lane_weight),
        freed=list(
            zip(
                entries(activities.freed_start, activities.freed),
                entries(activities.freed_start, activities.freed_weight),
                strict=True,
            )
        ),
        priority=int(activities.priority[i]),
        latency=float(activities.latency[i]),
        least=float(activities.least[i]),
        demands=list(
            zip(
                entries(activities.demand_start, activities.demand_resource),
                entries(activities.demand_start, activities.demand_amount),
                entries(activities.demand_start, activities.demand_times),
                entries(activities.demand_start, activities.demand_again),
                strict=True,
            )
        ),
        guard=int(activities.guard[i]),
        member=int(activities.member[i]),
    )


def _happens(twin: Twin, time: Seconds) -> bool:
    """Carry out the twin's event if it lies in this moment; true if it ends."""
    if twin.state not in ("delayed", "flowing") or twin.event > time * (1 + MOMENT):
        return False
    if twin.state == "delayed" and twin.demands:
        twin.state = "flowing"
        return False
    return True


@dataclass(slots=True)
class Door:
    """A gate: `left` has for each of its members the activities that have not gone through."""

    gate: Gate
    left: dict[str, list[Twin]]
    ages: dict[str, int] = field(default_factory=dict)

    def open(self) -> list[Twin]:
        """Those who go through now."""
        coming = [name for name, twins in self.left.items() if twins]
        waiting = {name: twin for name in coming for twin in self.left[name] if twin.state == "held"}
        if not opens(self.gate, self.ages, coming, waiting):
            return []
        for name, twin in waiting.items():
            self.left[name].remove(twin)
            twin.member = -1
        return list(waiting.values())


def _doors(activities: Activities, twins: list[Twin]) -> list[Door]:
    edges, needs, within = (x.tolist() for x in (activities.gate_start, activities.gate_need, activities.gate_within))
    return [
        Door(
            Gate(str(g), needs[g], within[g]),
            {str(m): [twin for twin in twins if twin.member == m] for m in range(edges[g], edges[g + 1])},
        )
        for g in range(len(needs))
    ]


def _react(
    twins: list[Twin], ready: list[Twin], ended: list[Twin], doors: list[Door], credit: Reals, time: Seconds
) -> None:
    """What follows from `ended` at this moment, wave by wave: ends, then skips, then gates open, and when all that is
    exhausted starts."""
    while ready or ended:
        for twin in ended:
            twin.state, twin.end = "finished", time
        for twin in ended:
            for successor in twin.successors:
                twins[successor].missing -= 1
                if twins[successor].missing == 0:
                    ready.append(twins[successor])
        for twin in ready:
            twin.state, twin.start = "ready" if twin.member < 0 else "held", time
        free = [twin for twin in ready if twin.state == "ready"]
        ended = [twin for twin in free if twin.guard >= 0 and twins[twin.guard].end <= time]
        ready = [] if ended else [twin for door in doors for twin in door.open()]
        if not ended and not ready:
            ended = _dispatch(twins, credit, time)


def _dispatch(twins: list[Twin], credit: Reals, time: Seconds) -> list[Twin]:
    """Start every ready twin that comes first on each of its lanes, all of them with room; returns those of no
    duration."""
    spare = credit.copy()
    for twin in twins:
        for lane, weight in zip(twin.lanes, twin.weights, strict=True) if twin.began else ():
            spare[lane] -= weight
        for lane, weight in twin.freed if twin.began and twin.state == "finished" else ():
            spare[lane] += weight
    instant = []
    for twin in sorted((twin for twin in twins if twin.state == "ready"), key=lambda twin: twin.key):
        if all(spare[lane] > 0 for lane in twin.lanes):
            twin.start, twin.began = time, True
            for lane, weight in zip(twin.lanes, twin.weights, strict=True):
                spare[lane] -= weight
            delay = twin.latency + (0.0 if twin.demands else twin.least)
            twin.state, twin.event = ("delayed", time + delay) if delay > 0 or not twin.demands else ("flowing", inf)
            if delay == 0 and not twin.demands:
                instant.append(twin)
        else:
            spare[twin.lanes] = 0.0
    return instant


def share(flowing: list[Twin], buckets: list[Bucket]) -> None:
    """Give every flowing twin its speed and every bucket its use, by the sharing law of `clock`."""
    users: dict[int, list[tuple[Twin, float, float]]] = {}
    for t in flowing:
        for r, d, k, _ in t.demands:
            users.setdefault(r, []).append((t, d, k))
    tops = {t.index: min([1 / t.least if t.least else inf, *(buckets[r].peak / d for r, d, *_ in t.demands)])
            for t in flowing}  # fmt: skip
    allotment = {r: buckets[r].capacity / sum(k for *_, k in users[r]) for r in users}
    before: dict[int, float] = {}
    for turn in range(1 + ROUNDS):
        for t in flowing:
            t.speed = min([tops[t.index], *(allotment[r] / d for r, d, *_ in t.demands)])
        if before and all(abs(t.speed - before[t.index]) <= TIE * t.speed for t in flowing):
            break
        before = {twin.index: twin.speed for twin in flowing}
        limits: dict[int, list[tuple[float, float]]] = {r: [] for r in users}
        for t in flowing:
            offers = [allotment[r] / d for r, d, *_ in t.demands]
            for place, (r, d, k, again) in enumerate(t.demands):
                others = offers if again else offers[:place] + offers[place + 1 :]
                limits[r].append((min([tops[t.index], *others]) * d, k))
        target = {r: level(limits[r], buckets[r].capacity) for r in users}
        allotment = target if turn < FREE else {r: halfway(allotment[r], target[r]) for r in users}
    without_gc, left = list(flowing), {r: buckets[r].capacity for r in users}
    while without_gc:
        load = {r: sum(d * k * t.speed for t, d, k in users[r] if t in without_gc) for r in users}
        growth = min([*(left[r] / load[r] for r in users if load[r]), *(tops[t.index] / t.speed for t in without_gc)])
        full = {r for r in users if left[r] <= growth * load[r] * (1 + FULL)}
        for t in without_gc:
            t.speed *= growth
        settled = [t for t in without_gc
                   if t.speed >= tops[t.index] * (1 - FULL) or any(r in full for r, *_ in t.demands)]  # fmt: skip
        without_gc = [t for t in without_gc if t not in settled]
        left = {r: left[r] - sum(d * k * t.speed for t, d, k in users[r] if t in settled) for r in users}
    for r, bucket in enumerate(buckets):
        bucket.use = sum(d * k * t.speed for t, d, k in users.get(r, []))


def halfway(a: float, b: float) -> float:
    """Their harmonic mean, as allotments may be inf."""
    return inf if a == b == inf else 2 / (1 / a + 1 / b)


def level(limits: list[tuple[float, float]], capacity: float) -> float:
    """The allotment that, each (of so many) taking no more than its limit, uses up the capacity; inf if all limits fit
    in it."""
    open = sum(times for _, times in limits)
    for limit, times in sorted(limits):
        allotment = capacity / open
        if limit >= allotment * (1 - TIE):
            return allotment
        capacity, open = capacity - limit * times, open - times
    return inf
