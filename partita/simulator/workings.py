"""The arrays inside the clock: the work as its loops want it, and the state that they change."""

from typing import NamedTuple

import numpy as np

from partita.errors import ProgramError
from partita.simulator.activities import Activities, Flags, Indices, Offsets, Reals, Resources

NOBODY = -1
BARRED, LET, BEGUN = 1, 2, 3  # at a gate, through it, and then started without a lane
SKIPPED = -2.0  # the speed of an activity that has ended without lanes
EVENTS, ENDED, READY, SWEPT_ENDED, SWEPT_READY, FLOCK, BASIN, DIGEST, OPEN, SWEPT_OPEN, LENGTHS = range(11)


class Work(NamedTuple):
    """Activities and resources, less the resources that are never shared; `line_start` gives each lane room for all
    that ever wait for it, `member_start` each resource for all that ever use it, `user` is the activity of a demand,
    which takes `load` of the resource as `times` users of `amount` each, and `again` as much of another like it; it
    is the member `gated` of a gate."""

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
    line_start: Offsets
    member_start: Offsets
    gated: Indices
    gate_start: Offsets
    gate_need: Offsets
    gate_within: Offsets


class State(NamedTuple):
    """What changes; `length` holds the lengths of lists.

    activity  `missing` predecessors, `start` (until it starts: when it became ready) and `end` seconds, `top` speed,
              `speed` now (-1 before its demands flow), `wish` the speed being sought, which its `tightest` demand
              allows, `otherwise` what the others would, `remaining` work at `since`
    event     an activity or n + a resource that runs dry: `place` in `heap`, where `key` is the time
    lane      what is `spare` of its credit and the heap `line` of the `queue` that wait for it
    resource  `users` in `member` (a `crowd` of so many), demands whose place there is `seat`; `tokens` at `counted`,
              its `use`, whether it `couples` its users; while seeking its capacity `left`, the equal `allotment` of
              each user, and the `load` of those that are not settled, for whom there is `room`
    gate      of each member the activity that is `held` (-1: none), how many are still `coming`, how often in a row it
              was left out (`age`); of an activity whether it is `barred` (0: it has no gate)
    lists     `ended` and `ready` in order, `open` lanes that still have room; `flock` and `basin` whose rates change,
              `found`
    """

    length: Offsets
    missing: Indices
    start: Reals
    end: Reals
    top: Reals
    speed: Reals
    wish: Reals
    otherwise: Reals
    tightest: Indices
    settled: Flags
    remaining: Reals
    since: Reals
    key: Reals
    place: Indices
    heap: Indices
    spare: Reals
    line: Indices
    queue: Indices
    users: Indices
    crowd: Reals
    member: Indices
    seat: Indices
    tokens: Reals
    counted: Reals
    use: Reals
    couples: Flags
    left: Reals
    load: Reals
    room: Reals
    allotment: Reals
    ended: Indices
    ready: Indices
    open: Indices
    flock: Indices
    basin: Indices
    found: Flags
    held: Indices
    coming: Indices
    age: Indices
    barred: Indices


def work_of(activities: Activities, resources: Resources) -> Work:
    """The work of the clock. A plain resource all of whose users hold one same lane is never shared: the time that it
    takes goes into `least`. Raises ProgramError for a demand of a resource that is not there."""
    resource, amount, times, m = (
        activities.demand_resource,
        activities.demand_amount,
        activities.demand_times,
        resources.size,
    )
    again = activities.demand_again
    if len(resource) and resource.max() >= m:
        raise ProgramError(f"resource {resource.max()} is demanded, but there are {m}; give a rate for each resource")
    user = np.repeat(np.arange(activities.size, dtype=np.int32), np.diff(activities.demand_start))
    shared = _shared(activities, resources, user)[resource]
    least = activities.least.copy()
    alone = user[~shared]
    np.maximum.at(least, alone, (amount * times)[~shared] / resources.rate[resource[~shared]])
    demand_start = activities.demand_start - _starts(np.bincount(alone, minlength=activities.size))
    resource, amount, times, user = resource[shared], amount[shared], times[shared], user[shared]
    again = again[shared]
    return Work(
        activities.successor_start,
        activities.successor,
        activities.lane_start,
        activities.lane,
        activities.lane_weight,
        activities.lane_credit,
        activities.freed_start,
        activities.freed,
        activities.freed_weight,
        activities.priority,
        activities.latency,
        least,
        activities.guard,
        demand_start,
        resource,
        amount,
        times,
        amount * times,
        again,
        user,
        resources.rate,
        resources.peak,
        resources.burst,
        _starts(np.bincount(activities.lane, minlength=len(activities.lane_credit))),
        _starts(np.bincount(resource, minlength=m)),
        activities.member,
        activities.gate_start,
        activities.gate_need,
        activities.gate_within,
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
        wish=np.zeros(n),
        otherwise=np.zeros(n),
        tightest=np.zeros(n, np.int32),
        settled=np.zeros(n, np.bool_),
        remaining=np.ones(n),
        since=np.zeros(n),
        key=np.full(n + m, np.inf),
        place=np.full(n + m, NOBODY, np.int32),
        heap=np.zeros(n + m, np.int32),
        spare=work.lane_credit.copy(),
        line=np.zeros(len(work.lane), np.int32),
        queue=np.zeros(lanes, np.int32),
        users=np.zeros(m, np.int32),
        crowd=np.zeros(m),
        member=np.zeros(demands, np.int32),
        seat=np.zeros(demands, np.int32),
        tokens=work.burst.copy(),
        counted=np.zeros(m),
        use=np.zeros(m),
        couples=np.zeros(m, np.bool_),
        left=np.zeros(m),
        load=np.zeros(m),
        room=np.zeros(m),
        allotment=np.zeros(m),
        ended=np.zeros(n, np.int32),
        ready=np.zeros(n + int((work.gated >= 0).sum()), np.int32),
        open=np.zeros(len(work.lane), np.int32),
        flock=np.zeros(n, np.int32),
        basin=np.zeros(m, np.int32),
        found=np.zeros(n + m, np.bool_),
        held=np.full(work.gate_start[-1], NOBODY, np.int32),
        coming=np.bincount(work.gated[work.gated >= 0], minlength=work.gate_start[-1]).astype(np.int32),
        age=np.zeros(work.gate_start[-1], np.int32),
        barred=(work.gated >= 0).astype(np.int32),
    )


def _starts(counts: Offsets) -> Offsets:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])


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
