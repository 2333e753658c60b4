"""The plain twin of the clock: the laws of `clock.advance` written to be read, all computed anew at every moment.
Only tests run it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Any

import numpy as np

from partita.arrays import Flags, Indices, Reals
from partita.errors import ProgramError
from partita.program.gate import Gate, opens
from partita.simulator.activities import Activities, Offsets, Resources
from partita.simulator.clock_loop import MOMENT
from partita.simulator.sharing import FREE, FULL, ROUNDS, SLACK, TIE
from partita.units import Seconds


@dataclass(slots=True)
class Progress:
    """One activity and how far it has come; `start` is when it became ready until it has started, `speed` the work done
    a second (all of it is 1)."""

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
        """What it is sorted by in the lines of its lanes, the first first."""
        return self.priority, self.start, self.index


@dataclass(slots=True)
class TokenBucket:
    """One resource; `tokens` is what its bucket holds, `use` the units a second drawn now."""

    rate: float
    peak: float
    burst: float
    tokens: float = field(default=0.0)
    use: float = 0.0

    @property
    def bursts(self) -> bool:
        """Whether it gives more than its rate while it has tokens."""
        return self.burst > 0 and self.peak > self.rate

    @property
    def capacity(self) -> float:
        """Units a second that it gives now."""
        return self.peak if self.bursts and self.tokens > 0 else self.rate

    @property
    def spill(self) -> float:
        """Tokens lost a second; a use within SLACK of the rate loses none."""
        return 0.0 if abs(self.use - self.rate) <= SLACK * self.rate else self.use - self.rate

    @property
    def dry(self) -> Seconds:
        """Seconds until the tokens run out."""
        return self.tokens / self.spill if self.bursts and self.tokens > 0 and self.spill > 0 else inf


def advance_plainly(arrays: Activities, resources: Resources) -> tuple[Reals, Reals]:
    """(start, end) seconds of every activity, as `clock.advance`; raises ProgramError likewise."""
    activities = [_activity(arrays, i) for i in range(arrays.size)]
    gates = _gates(arrays, activities)
    rows = zip(resources.rate, resources.peak, resources.burst, strict=True)
    buckets = [TokenBucket(*map(float, row)) for row in rows]
    for bucket in buckets:
        bucket.tokens = bucket.burst
    time = 0.0
    ready = [activity for activity in activities if activity.missing <= 0]
    ended: list[Progress] = []
    while True:
        _react(activities, ready, ended, gates, arrays.lane_credit, time)
        flowing = [activity for activity in activities if activity.state == "flowing"]
        share(flowing, buckets)
        for activity in flowing:
            activity.event = time + max(activity.remaining, 0.0) / activity.speed
        waiting = [activity.event for activity in activities if activity.state in ("delayed", "flowing")]
        upcoming = min([*waiting, *(time + bucket.dry for bucket in buckets)], default=inf)
        if upcoming == inf:
            break
        drained = [b for b in buckets if time + b.dry <= upcoming * (1 + MOMENT)]
        for bucket in buckets:
            bucket.tokens = min(bucket.burst, max(0.0, bucket.tokens - bucket.spill * (upcoming - time)))
        for bucket in drained:
            bucket.tokens = 0.0
        for activity in flowing:
            activity.remaining -= activity.speed * (upcoming - time)
        time, ready = upcoming, []
        ended = [activity for activity in activities if _happens(activity, time)]
    stuck = [activity.index for activity in activities if activity.end == inf]
    if stuck:
        raise ProgramError(f"activities {stuck} never finish")
    return np.array([activity.start for activity in activities]), np.array([activity.end for activity in activities])


def _entries(i: int, start: Offsets, values: Indices | Reals | Flags) -> list[Any]:
    """The values of activity `i`."""
    return [value.item() for value in values[start[i] : start[i + 1]]]


def _activity(arrays: Activities, i: int) -> Progress:
    entries = partial(_entries, i)
    return Progress(
        index=i,
        missing=int(arrays.need[i]),
        successors=entries(arrays.successor_start, arrays.successor),
        lanes=entries(arrays.lane_start, arrays.lane),
        weights=entries(arrays.lane_start, arrays.lane_weight),
        freed=list(
            zip(
                entries(arrays.freed_start, arrays.freed),
                entries(arrays.freed_start, arrays.freed_weight),
                strict=True,
            )
        ),
        priority=int(arrays.priority[i]),
        latency=float(arrays.latency[i]),
        least=float(arrays.least[i]),
        demands=list(
            zip(
                entries(arrays.demand_start, arrays.demand_resource),
                entries(arrays.demand_start, arrays.demand_amount),
                entries(arrays.demand_start, arrays.demand_times),
                entries(arrays.demand_start, arrays.demand_again),
                strict=True,
            )
        ),
        guard=int(arrays.guard[i]),
        member=int(arrays.member[i]),
    )


def _happens(activity: Progress, time: Seconds) -> bool:
    """Carry out the activity's event if it lies in this moment; true if it ends."""
    if activity.state not in ("delayed", "flowing") or activity.event > time * (1 + MOMENT):
        return False
    if activity.state == "delayed" and activity.demands:
        activity.state = "flowing"
        return False
    return True


@dataclass(slots=True)
class PlainGate:
    """A gate: `left` has for each of its members the activities that have not gone through."""

    gate: Gate
    left: dict[str, list[Progress]]
    ages: dict[str, int] = field(default_factory=dict)

    def open(self) -> list[Progress]:
        """Those who go through now."""
        coming = [name for name, activities in self.left.items() if activities]
        waiting = {name: activity for name in coming for activity in self.left[name] if activity.state == "held"}
        if not opens(self.gate, self.ages, coming, waiting):
            return []
        for name, activity in waiting.items():
            self.left[name].remove(activity)
            activity.member = -1
        return list(waiting.values())


def _gates(arrays: Activities, activities: list[Progress]) -> list[PlainGate]:
    edges, needs, within = (x.tolist() for x in (arrays.gate_start, arrays.gate_need, arrays.gate_within))
    return [
        PlainGate(
            Gate(str(g), needs[g], within[g]),
            {str(m): [one for one in activities if one.member == m] for m in range(edges[g], edges[g + 1])},
        )
        for g in range(len(needs))
    ]


def _react(
    activities: list[Progress], ready: list[Progress], ended: list[Progress], gates: list[PlainGate], credit: Reals,
    time: Seconds,
) -> None:  # fmt: skip
    """What follows from `ended` at this moment, wave by wave: ends, then skips, then gates open, and when all that is
    exhausted starts."""
    while ready or ended:
        for activity in ended:
            activity.state, activity.end = "finished", time
        for activity in ended:
            for successor in activity.successors:
                activities[successor].missing -= 1
                if activities[successor].missing == 0:
                    ready.append(activities[successor])
        for activity in ready:
            activity.state, activity.start = "ready" if activity.member < 0 else "held", time
        free = [activity for activity in ready if activity.state == "ready"]
        ended = [activity for activity in free if activity.guard >= 0 and activities[activity.guard].end <= time]
        ready = [] if ended else [activity for gate in gates for activity in gate.open()]
        if not ended and not ready:
            ended = _dispatch(activities, credit, time)


def _dispatch(activities: list[Progress], credit: Reals, time: Seconds) -> list[Progress]:
    """Start every ready activity that comes first on each of its lanes, all of them with room; returns those of no
    duration."""
    spare = credit.copy()
    for activity in activities:
        for lane, weight in zip(activity.lanes, activity.weights, strict=True) if activity.began else ():
            spare[lane] -= weight
        for lane, weight in activity.freed if activity.began and activity.state == "finished" else ():
            spare[lane] += weight
    instant = []
    for activity in sorted((one for one in activities if one.state == "ready"), key=lambda one: one.key):
        if all(spare[lane] > 0 for lane in activity.lanes):
            activity.start, activity.began = time, True
            for lane, weight in zip(activity.lanes, activity.weights, strict=True):
                spare[lane] -= weight
            delay = activity.latency + (0.0 if activity.demands else activity.least)
            delayed = delay > 0 or not activity.demands
            activity.state, activity.event = ("delayed", time + delay) if delayed else ("flowing", inf)
            if delay == 0 and not activity.demands:
                instant.append(activity)
        else:
            spare[activity.lanes] = 0.0
    return instant


def share(flowing: list[Progress], buckets: list[TokenBucket]) -> None:
    """Give every flowing activity its speed and every bucket its use, by the sharing law of `clock`."""
    users: dict[int, list[tuple[Progress, float, float]]] = {}
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
        before = {activity.index: activity.speed for activity in flowing}
        limits: dict[int, list[tuple[float, float]]] = {r: [] for r in users}
        for t in flowing:
            offers = [allotment[r] / d for r, d, *_ in t.demands]
            for place, (r, d, k, again) in enumerate(t.demands):
                others = offers if again else offers[:place] + offers[place + 1 :]
                limits[r].append((min([tops[t.index], *others]) * d, k))
        target = {r: level(limits[r], buckets[r].capacity) for r in users}
        allotment = target if turn < FREE else {r: halfway(allotment[r], target[r]) for r in users}
    unsettled, left = list(flowing), {r: buckets[r].capacity for r in users}
    while unsettled:
        load = {r: sum(d * k * t.speed for t, d, k in users[r] if t in unsettled) for r in users}
        growth = min([*(left[r] / load[r] for r in users if load[r]), *(tops[t.index] / t.speed for t in unsettled)])
        full = {r for r in users if left[r] <= growth * load[r] * (1 + FULL)}
        for t in unsettled:
            t.speed *= growth
        settled = [t for t in unsettled
                   if t.speed >= tops[t.index] * (1 - FULL) or any(r in full for r, *_ in t.demands)]  # fmt: skip
        unsettled = [t for t in unsettled if t not in settled]
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
