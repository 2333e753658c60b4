"""The loops of the clock, compiled: moments, lanes and the sharing law of `clock`, whose terms are used here.

They stay in one file because a compiled function is cached by the file that it is in, not by those that it calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import numba
import numpy as np

from partita.simulator.activities import Offsets, Reals
from partita.simulator.workings import BASIN, ENDED, EVENTS, FLOCK, NOBODY, READY, SWEPT_ENDED, SWEPT_READY, State, Work

if TYPE_CHECKING:
    Function = TypeVar("Function", bound=Callable[..., Any])

    def part(function: Function) -> Function: ...
    def compiled(function: Function) -> Function: ...
else:
    # No wrappers for Python and no reference counts: a quarter of the time to compile.
    part = numba.njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True, _nrt=False)
    compiled = numba.njit(error_model="numpy", no_cfunc_wrapper=True, _nrt=False, cache=True, nogil=True)

MOMENT = 1e-12
TIE = 1e-12
FULL = 1e-11
SLACK = 1e-9
FREE = 20
ROUNDS = 200


@part
def _put(state: State, event: int, time: float) -> None:
    """Set the time of an event, new or known; inf parks it at the end."""
    key, place, heap = state.key, state.place, state.heap
    at = place[event]
    if at < 0:
        if time == np.inf:
            return
        at = state.count[EVENTS]
        state.count[EVENTS] += 1
    key[event] = time
    while at > 0 and _sooner(key, event, heap[(at - 1) >> 1]):
        heap[at] = heap[(at - 1) >> 1]
        place[heap[at]] = at
        at = (at - 1) >> 1
    _sink(state, event, at)


@part
def _pop(state: State) -> int:
    heap = state.heap
    event = heap[0]
    state.place[event] = NOBODY
    state.count[EVENTS] -= 1
    if state.count[EVENTS] > 0:
        _sink(state, heap[state.count[EVENTS]], 0)
    return event


@part
def _sink(state: State, event: int, at: int) -> None:
    key, place, heap, size = state.key, state.place, state.heap, state.count[EVENTS]
    while 2 * at + 1 < size:
        below = 2 * at + 1
        if below + 1 < size and _sooner(key, heap[below + 1], heap[below]):
            below += 1
        if not _sooner(key, heap[below], event):
            break
        heap[at] = heap[below]
        place[heap[at]] = at
        at = below
    heap[at] = event
    place[event] = at


@part
def _sooner(key: Reals, a: int, b: int) -> bool:
    return key[a] < key[b] or (key[a] == key[b] and a < b)


@part
def _first(priority: Offsets, ready: Reals, a: int, b: int) -> bool:
    if priority[a] != priority[b]:
        return priority[a] < priority[b]
    return ready[a] < ready[b] or (ready[a] == ready[b] and a < b)


@part
def _join_line(work: Work, state: State, lane: int, activity: int) -> None:
    line, base, at = state.line, work.line_start[lane], state.queue[lane]
    state.queue[lane] += 1
    while at > 0:
        above = line[base + ((at - 1) >> 1)]
        if not _first(work.priority, state.start, activity, above):
            break
        line[base + at] = above
        at = (at - 1) >> 1
    line[base + at] = activity


@part
def _leave_line(work: Work, state: State, lane: int) -> None:
    line, base, size, at = state.line, work.line_start[lane], state.queue[lane] - 1, 0
    state.queue[lane] = size
    last = line[base + size]
    while 2 * at + 1 < size:
        below = 2 * at + 1
        if below + 1 < size and _first(work.priority, state.start, line[base + below + 1], line[base + below]):
            below += 1
        if not _first(work.priority, state.start, line[base + below], last):
            break
        line[base + at] = line[base + below]
        at = below
    line[base + at] = last


@part
def _find(state: State, event: int, activities: int) -> None:
    """Add an activity, or n + a resource, to those whose rates change."""
    if not state.found[event]:
        state.found[event] = True
        if event < activities:
            state.flock[state.count[FLOCK]] = event
            state.count[FLOCK] += 1
        else:
            state.basin[state.count[BASIN]] = event - activities
            state.count[BASIN] += 1


@part
def _flow(work: Work, state: State, activity: int, time: float) -> None:
    """Its demands begin to flow."""
    top = 1 / work.least[activity]
    state.speed[activity] = 0.0
    state.since[activity] = time
    for demand in range(work.demand_start[activity], work.demand_start[activity + 1]):
        resource = work.resource[demand]
        top = min(top, work.peak[resource] / work.amount[demand])
        state.seat[demand] = state.users[resource]
        state.member[work.member_start[resource] + state.users[resource]] = demand
        state.users[resource] += 1
    state.top[activity] = top
    _find(state, activity, len(state.end))


@part
def _ebb(work: Work, state: State, activity: int) -> None:
    """Its demands flow no more."""
    for demand in range(work.demand_start[activity], work.demand_start[activity + 1]):
        resource = work.resource[demand]
        state.users[resource] -= 1
        last = state.member[work.member_start[resource] + state.users[resource]]
        state.member[work.member_start[resource] + state.seat[demand]] = last
        state.seat[last] = state.seat[demand]
        _find(state, len(state.end) + resource, len(state.end))


@part
def _happen(work: Work, state: State, event: int, time: float) -> None:
    """A bucket runs dry, an activity's latency is over, or it ends."""
    n = len(state.end)
    if event >= n:
        state.tokens[event - n] = 0.0
        state.counted[event - n] = time
        _find(state, event, n)
        return
    if work.demand_start[event] < work.demand_start[event + 1]:
        if state.speed[event] < 0:
            _flow(work, state, event, time)
            return
        _ebb(work, state, event)
    state.ended[state.count[ENDED]] = event
    state.count[ENDED] += 1


@part
def _begin(work: Work, state: State, activity: int, time: float) -> None:
    state.start[activity] = time
    for k in range(work.lane_start[activity], work.lane_start[activity + 1]):
        _leave_line(work, state, work.lane[k])
        state.owner[work.lane[k]] = activity
    flows = work.demand_start[activity] < work.demand_start[activity + 1]
    delay = work.latency[activity] + (0.0 if flows else work.least[activity])
    if delay > 0:
        _put(state, activity, time + delay)
    else:
        _happen(work, state, activity, time)


@part
def _try(work: Work, state: State, activity: int, time: float) -> None:
    """Begin the first in line on each lane of `activity`, where it is so on all of its own lanes and they are free."""
    for k in range(work.lane_start[activity], work.lane_start[activity + 1]):
        lane = work.lane[k]
        if state.queue[lane] == 0 or state.owner[lane] >= 0:
            continue
        head = state.line[work.line_start[lane]]
        clear = True
        for j in range(work.lane_start[head], work.lane_start[head + 1]):
            other = work.lane[j]
            clear = clear and state.owner[other] < 0 and state.line[work.line_start[other]] == head
        if clear:
            _begin(work, state, head, time)


@part
def _release(work: Work, state: State, activity: int, time: float) -> None:
    """Record an end; free its lanes and make ready the successors that waited for nothing else."""
    state.end[activity] = time
    for k in range(work.lane_start[activity], work.lane_start[activity + 1]):
        if state.owner[work.lane[k]] == activity:
            state.owner[work.lane[k]] = NOBODY
    for k in range(work.successor_start[activity], work.successor_start[activity + 1]):
        successor = work.successor[k]
        state.missing[successor] -= 1
        if state.missing[successor] == 0:
            state.ready[state.count[READY]] = successor
            state.count[READY] += 1


@part
def _admit(work: Work, state: State, activity: int, time: float) -> None:
    """Put a ready activity into the lines of its lanes, or end it where its guard has finished."""
    state.start[activity] = time
    if work.guard[activity] >= 0 and state.end[work.guard[activity]] <= time:
        state.ended[state.count[ENDED]] = activity
        state.count[ENDED] += 1
    else:
        for k in range(work.lane_start[activity], work.lane_start[activity + 1]):
            _join_line(work, state, work.lane[k], activity)


@part
def _react(work: Work, state: State, time: float) -> None:
    """All that follows within this moment, wave by wave."""
    count = state.count
    ended, ready = count[SWEPT_ENDED], count[SWEPT_READY]
    while ended < count[ENDED] or ready < count[READY]:
        first_ended, first_ready = ended, ready
        while ended < count[ENDED] or ready < count[READY]:
            while ended < count[ENDED]:
                _release(work, state, state.ended[ended], time)
                ended += 1
            while ready < count[READY]:
                _admit(work, state, state.ready[ready], time)
                ready += 1
        for k in range(first_ended, ended):
            _try(work, state, state.ended[k], time)
        for k in range(first_ready, ready):
            activity = state.ready[k]
            if work.lane_start[activity] < work.lane_start[activity + 1]:
                _try(work, state, activity, time)
            elif state.end[activity] == np.inf:
                _begin(work, state, activity, time)
    count[SWEPT_ENDED], count[SWEPT_READY] = ended, ready


@part
def _binds(work: Work, state: State, resource: int, time: float) -> bool:
    """Bring a bucket up to now; whether its users' rates hang together through it, or did before."""
    capacity = work.rate[resource]
    if work.burst[resource] > 0 and work.peak[resource] > capacity:
        spill = state.use[resource] - capacity
        if abs(spill) > SLACK * capacity:
            tokens = state.tokens[resource] - spill * (time - state.counted[resource])
            state.tokens[resource] = min(max(tokens, 0.0), work.burst[resource])
        state.counted[resource] = time
        if state.tokens[resource] > 0:
            capacity = work.peak[resource]
    load, base, before = 0.0, work.member_start[resource], state.couples[resource]
    for k in range(base, base + state.users[resource]):
        load += work.amount[state.member[k]] * state.top[work.user[state.member[k]]]
    state.left[resource] = capacity
    state.allotment[resource] = capacity / state.users[resource]
    state.couples[resource] = load > capacity * (1 + SLACK)
    return before or state.couples[resource]


@part
def _spread(work: Work, state: State, time: float) -> None:
    """Find all whose rates may change: what hangs together with the changed through resources that bind."""
    n, count, flock, basin = len(state.end), state.count, 0, 0
    while flock < count[FLOCK] or basin < count[BASIN]:
        if basin < count[BASIN]:
            resource = state.basin[basin]
            basin += 1
            if _binds(work, state, resource, time):
                base = work.member_start[resource]
                for k in range(base, base + state.users[resource]):
                    _find(state, work.user[state.member[k]], n)
        else:
            for demand in range(work.demand_start[state.flock[flock]], work.demand_start[state.flock[flock] + 1]):
                _find(state, n + work.resource[demand], n)
            flock += 1


@part
def _offer(work: Work, state: State) -> bool:
    """What each could take of the allotments offered; true if that is what it was before."""
    same = True
    for k in range(state.count[FLOCK]):
        activity = state.flock[k]
        wish, otherwise, tightest = state.top[activity], state.top[activity], NOBODY
        for demand in range(work.demand_start[activity], work.demand_start[activity + 1]):
            resource = work.resource[demand]
            if state.couples[resource]:
                offer = state.allotment[resource] / work.amount[demand]
                if offer < wish:
                    wish, otherwise, tightest = offer, wish, resource
                elif offer < otherwise:
                    otherwise = offer
        same = same and abs(wish - state.wish[activity]) <= TIE * wish
        state.wish[activity], state.otherwise[activity], state.tightest[activity] = wish, otherwise, tightest
    return same


@part
def _allot(work: Work, state: State, halfway: bool) -> None:
    """The allotment of each resource that uses it up, given what its users could take of the others; or `halfway`
    (the harmonic mean) from the last to it."""
    for k in range(state.count[BASIN]):
        resource = state.basin[k]
        first, users = work.member_start[resource], state.users[resource]
        allotment, open, before = state.left[resource] / users, users, users + 1
        while state.couples[resource] and open < before:
            left, before, open = state.left[resource], open, 0
            for j in range(first, first + users):
                user = work.user[state.member[j]]
                limit = state.otherwise[user] if state.tightest[user] == resource else state.wish[user]
                if limit * work.amount[state.member[j]] < allotment:
                    left -= limit * work.amount[state.member[j]]
                else:
                    open += 1
            allotment = left / open if open > 0 else np.inf
        state.allotment[resource] = 2 / (1 / state.allotment[resource] + 1 / allotment) if halfway else allotment


@part
def _grow(work: Work, state: State) -> bool:
    """All that still seek a speed grow in proportion until one has its top or a resource is full; that one, or the
    resource's users, are settled. True if some still seek. This ends where the offers went in a circle."""
    growth, seek = np.inf, False
    for k in range(state.count[BASIN]):
        state.load[state.basin[k]], state.room[state.basin[k]] = 0.0, state.left[state.basin[k]]
    for k in range(state.count[FLOCK]):
        activity = state.flock[k]
        for demand in range(work.demand_start[activity], work.demand_start[activity + 1]):
            use = work.amount[demand] * state.wish[activity]
            if state.settled[activity]:
                state.room[work.resource[demand]] -= use
            else:
                state.load[work.resource[demand]] += use
        if not state.settled[activity]:
            growth = min(growth, state.top[activity] / state.wish[activity])
    for k in range(state.count[BASIN]):
        resource = state.basin[k]
        if state.couples[resource] and state.load[resource] > 0:
            growth = min(growth, state.room[resource] / state.load[resource])
    for k in range(state.count[FLOCK]):
        activity = state.flock[k]
        if state.settled[activity]:
            continue
        state.wish[activity] *= growth
        settled = state.wish[activity] >= state.top[activity] * (1 - FULL)
        for demand in range(work.demand_start[activity], work.demand_start[activity + 1]):
            resource = work.resource[demand]
            full = state.room[resource] <= growth * state.load[resource] * (1 + FULL)
            settled = settled or (state.couples[resource] and full)
        state.settled[activity] = settled
        seek = seek or not settled
    return seek


@part
def _apply(work: Work, state: State, time: float) -> None:
    """Foresee the ends at the new speeds and the moments at which buckets run dry."""
    n = len(state.end)
    for k in range(state.count[FLOCK]):
        activity = state.flock[k]
        state.found[activity] = state.settled[activity] = False
        if state.wish[activity] != state.speed[activity]:
            done = state.speed[activity] * (time - state.since[activity])
            state.remaining[activity] = max(state.remaining[activity] - done, 0.0)
            state.since[activity], state.speed[activity] = time, state.wish[activity]
            _put(state, activity, time + state.remaining[activity] / state.speed[activity])
    for k in range(state.count[BASIN]):
        resource = state.basin[k]
        state.found[n + resource] = False
        if work.burst[resource] > 0 and work.peak[resource] > work.rate[resource]:
            use, base = 0.0, work.member_start[resource]
            for j in range(base, base + state.users[resource]):
                use += work.amount[state.member[j]] * state.speed[work.user[state.member[j]]]
            state.use[resource], spill = use, use - work.rate[resource]
            dries = spill > SLACK * work.rate[resource] and state.tokens[resource] > 0
            _put(state, n + resource, time + state.tokens[resource] / spill if dries else np.inf)
    state.count[FLOCK] = state.count[BASIN] = 0


@part
def _share(work: Work, state: State, time: float) -> None:
    _spread(work, state, time)
    _offer(work, state)
    for turn in range(ROUNDS):
        _allot(work, state, turn >= FREE)
        if _offer(work, state):
            break
    while _grow(work, state):
        pass
    _apply(work, state, time)


@compiled
def run(work: Work, state: State) -> None:
    """Moment after moment, until nothing more can happen; those that never could keep an end of inf."""
    time = 0.0
    for activity in range(len(state.end)):
        if state.missing[activity] <= 0:
            state.ready[state.count[READY]] = activity
            state.count[READY] += 1
    while True:
        _react(work, state, time)
        _share(work, state, time)
        if state.count[EVENTS] == 0 or state.key[state.heap[0]] == np.inf:
            break
        time = state.key[state.heap[0]]
        while state.count[EVENTS] > 0 and state.key[state.heap[0]] <= time * (1 + MOMENT):
            _happen(work, state, _pop(state), time)
