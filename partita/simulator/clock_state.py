"""The arrays inside the clock: the work as its loops want it, and the state that they change."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from partita.arrays import Flags, Indices, Reals
from partita.errors import ProgramError
from partita.simulator.activities import Activities, Offsets, Resources

NOBODY = -1
AT_GATE, THROUGH, STARTED = 1, 2, 3  # at a gate, through it, and then started without a lane
SKIPPED = -2.0  # the speed of an activity that has ended without lanes
EVENTS, ENDED, READY, SWEPT_ENDED, SWEPT_READY, ACTIVITIES, RESOURCES, DIGEST, OPEN, SWEPT_OPEN, LENGTHS = range(11)


class Work(NamedTuple):
    """Activities and resources, less the resources that are never shared; `waiting_start` gives each lane room for all
    that ever wait for it, `user_start` each resource for all that ever use it, `user` is the activity of a demand,
    which takes `load` of the resource as `times` users of `amount` each, and `again` as much of another like it; it
    is the member `gate_member` of a gate."""

    successor_start: Offsets
    successor: Indices
    lane_start: Offsets
    lane: Indices
    lane_weight: Reals
    lane_credit: Reals
    freed_start: Offsets
    freed: Indices
    freed_weight: Reals
    priority: Offsets
    latency: Reals
    least: Reals
    guard: Indices
    demand_start: Offsets
    resource: Indices
    amount: Reals
    times: Reals
    load: Reals
    again: Flags
    user: Indices
    rate: Reals
    peak: Reals
    burst: Reals
    waiting_start: Offsets
    user_start: Offsets
    gate_member: Indices
    gate_start: Offsets
    gate_need: Offsets
    gate_within: Offsets


class State(NamedTuple):
    """What changes; `length` holds the lengths of lists.

    activity  `missing` predecessors, `start` (until it starts: when it became ready) and `end` seconds, `top` speed,
              `speed` now (-1 before its demands flow), `target` the speed being sought, which its `tightest` demand
              allows, `without_tightest` what the others would, `remaining` work at `since`
    event     an activity, or n + a resource whose token bucket becomes empty: `place` in `heap`, where `key` is the
              time
    lane      what is `spare` of its credit and the heap `waiting` of the `waiting_count` activities that wait for it
    resource  `users`: the demands in `user_demand` that flow now, at `user_place` there; `user_count` of them by their
              times; `tokens` at `counted`, its `use`, whether it is `contended`: its users would exceed it; while
              seeking its `capacity`, the equal `allotment` of each user, and the `load` of those that are not settled,
              for whom there is `room`
    gate      of each member the activity that is `held` (-1: none), how many are still `coming`, how often in a row it
              was left out (`age`); of an activity its `gate_state` (0: it has no gate)
    lists     `ended` and `ready` in order, `open` lanes that still have room; `changed_activities` and
              `changed_resources` whose rates change, which are `marked`
    """

    length: Offsets
    missing: Indices
    start: Reals
    end: Reals
    top: Reals
    speed: Reals
    target: Reals
    without_tightest: Reals
    tightest: Indices
    settled: Flags
    remaining: Reals
    since: Reals
    key: Reals
    place: Indices
    heap: Indices
    spare: Reals
    waiting: Indices
    waiting_count: Indices
    users: Indices
    user_count: Reals
    user_demand: Indices
    user_place: Indices
    tokens: Reals
    counted: Reals
    use: Reals
    contended: Flags
    capacity: Reals
    load: Reals
    room: Reals
    allotment: Reals
    ended: Indices
    ready: Indices
    open: Indices
    changed_activities: Indices
    changed_resources: Indices
    marked: Flags
    held: Indices
    coming: Indices
    age: Indices
    gate_state: Indices


def work_of(activities: Activities, resources: Resources) -> Work:
    """The work of the clock. Raises ProgramError for a demand of a resource that is not there."""
    m = resources.size
    if (most := activities.demand_resource.max(initial=-1)) >= m:
        raise ProgramError(f"resource {most} is demanded, but there are {m}; give a rate for each resource")
    left = _less_unshared(activities, resources)
    return Work(
        left.successor_start,
        left.successor,
        left.lane_start,
        left.lane,
        left.lane_weight,
        left.lane_credit,
        left.freed_start,
        left.freed,
        left.freed_weight,
        left.priority,
        left.latency,
        left.least,
        left.guard,
        left.demand_start,
        left.demand_resource,
        left.demand_amount,
        left.demand_times,
        left.demand_amount * left.demand_times,
        left.demand_again,
        _users(left),
        resources.rate,
        resources.peak,
        resources.burst,
        _starts(np.bincount(left.lane, minlength=len(left.lane_credit))),
        _starts(np.bincount(left.demand_resource, minlength=m)),
        left.member,
        left.gate_start,
        left.gate_need,
        left.gate_within,
    )


def state_of(work: Work, need: Indices) -> State:
    """The state at time 0: nothing ready, every bucket full."""
    n, m, lanes, demands = len(need), len(work.rate), len(work.lane_credit), len(work.amount)
    return State(
        length=np.zeros(LENGTHS, np.int64),
        missing=need.copy(),
        start=np.full(n, np.inf),
        end=np.full(n, np.inf),
        top=np.zeros(n),
        speed=np.full(n, -1.0),
        target=np.zeros(n),
        without_tightest=np.zeros(n),
        tightest=np.zeros(n, np.int32),
        settled=np.zeros(n, np.bool_),
        remaining=np.ones(n),
        since=np.zeros(n),
        key=np.full(n + m, np.inf),
        place=np.full(n + m, NOBODY, np.int32),
        heap=np.zeros(n + m, np.int32),
        spare=work.lane_credit.copy(),
        waiting=np.zeros(len(work.lane), np.int32),
        waiting_count=np.zeros(lanes, np.int32),
        users=np.zeros(m, np.int32),
        user_count=np.zeros(m),
        user_demand=np.zeros(demands, np.int32),
        user_place=np.zeros(demands, np.int32),
        tokens=work.burst.copy(),
        counted=np.zeros(m),
        use=np.zeros(m),
        contended=np.zeros(m, np.bool_),
        capacity=np.zeros(m),
        load=np.zeros(m),
        room=np.zeros(m),
        allotment=np.zeros(m),
        ended=np.zeros(n, np.int32),
        ready=np.zeros(n + int((work.gate_member >= 0).sum()), np.int32),
        open=np.zeros(len(work.lane), np.int32),
        changed_activities=np.zeros(n, np.int32),
        changed_resources=np.zeros(m, np.int32),
        marked=np.zeros(n + m, np.bool_),
        held=np.full(work.gate_start[-1], NOBODY, np.int32),
        coming=np.bincount(work.gate_member[work.gate_member >= 0], minlength=work.gate_start[-1]).astype(np.int32),
        age=np.zeros(work.gate_start[-1], np.int32),
        gate_state=(work.gate_member >= 0).astype(np.int32),
    )


def _starts(counts: Offsets) -> Offsets:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])


def _users(activities: Activities) -> Indices:
    """The activity of each demand."""
    return np.repeat(np.arange(activities.size, dtype=np.int32), np.diff(activities.demand_start))


def _less_unshared(activities: Activities, resources: Resources) -> Activities:
    """The activities less their demands of plain resources all of whose users hold one same lane, which are never
    shared: the time that those take goes into `least`."""
    resource, user = activities.demand_resource, _users(activities)
    shared = _shared(activities, resources, user)[resource]
    alone, least = user[~shared], activities.least.copy()
    seconds = activities.demand_amount * activities.demand_times / resources.rate[resource]
    np.maximum.at(least, alone, seconds[~shared])
    return replace(
        activities,
        least=least,
        demand_start=activities.demand_start - _starts(np.bincount(alone, minlength=activities.size)),
        demand_resource=resource[shared],
        demand_amount=activities.demand_amount[shared],
        demand_times=activities.demand_times[shared],
        demand_again=activities.demand_again[shared],
    )


def _shared(activities: Activities, resources: Resources, user: Indices) -> Flags:
    """Per resource, whether two of its users could run at once, or its bucket keeps a memory of them."""
    lane, start = activities.lane, activities.lane_start
    only = np.full(activities.size, NOBODY, np.int32)
    single = np.flatnonzero(np.diff(start) == 1)
    several = np.zeros(len(activities.lane_credit), np.bool_)
    several[lane[activities.lane_weight < activities.lane_credit[lane]]] = True
    only[single] = np.where(several[lane[start[single]]], NOBODY, lane[start[single]])
    low, high = np.full(resources.size, np.iinfo(np.int32).max, np.int32), np.full(resources.size, NOBODY, np.int32)
    np.minimum.at(low, activities.demand_resource, only[user])
    np.maximum.at(high, activities.demand_resource, only[user])
    plain = (resources.peak == resources.rate) | (resources.burst == 0)
    flags: Flags = ~plain | (low != high) | (low < 0)
    resource = activities.demand_resource
    flags[resource[1:][(resource[1:] == resource[:-1]) & (user[1:] == user[:-1])]] = True
    return flags
