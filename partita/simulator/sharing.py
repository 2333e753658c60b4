"""Speeds by the sharing law of `clock`, whose terms are used here, for all that a moment has changed."""

from __future__ import annotations

import numpy as np

from partita.simulator.queues import part, put
from partita.simulator.workings import BASIN, FLOCK, NOBODY, State, Work

TIE = 1e-12
FULL = 1e-11
SLACK = 1e-9
FREE, ROUNDS = 20, 200  # after how many rounds allotments go halfway, and no further


@part
def find(state: State, event: int, activities: int) -> None:
    """Add an activity, or n + a resource, to those whose rates change."""
    if not state.found[event]:
        state.found[event] = True
        if event < activities:
            state.flock[state.length[FLOCK]] = event
            state.length[FLOCK] += 1
        else:
            state.basin[state.length[BASIN]] = event - activities
            state.length[BASIN] += 1


@part
def flow(work: Work, state: State, activity: int, time: float) -> None:
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
    find(state, activity, len(state.end))


@part
def ebb(work: Work, state: State, activity: int) -> None:
    """Its demands flow no more."""
    for demand in range(work.demand_start[activity], work.demand_start[activity + 1]):
        resource = work.resource[demand]
        state.users[resource] -= 1
        last = state.member[work.member_start[resource] + state.users[resource]]
        state.member[work.member_start[resource] + state.seat[demand]] = last
        state.seat[last] = state.seat[demand]
        find(state, len(state.end) + resource, len(state.end))


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
    load, crowd, base, before = 0.0, 0.0, work.member_start[resource], state.couples[resource]
    for k in range(base, base + state.users[resource]):
        load += work.load[state.member[k]] * state.top[work.user[state.member[k]]]
        crowd += work.times[state.member[k]]
    state.left[resource] = capacity
    state.crowd[resource] = crowd
    state.allotment[resource] = capacity / crowd
    state.couples[resource] = load > capacity * (1 + SLACK)
    return bool(before or state.couples[resource])


@part
def _spread(work: Work, state: State, time: float) -> None:
    """Find all whose rates may change: what hangs together with the changed through resources that bind."""
    n, length, flock, basin = len(state.end), state.length, 0, 0
    while flock < length[FLOCK] or basin < length[BASIN]:
        if basin < length[BASIN]:
            resource = state.basin[basin]
            basin += 1
            if _binds(work, state, resource, time):
                base = work.member_start[resource]
                for k in range(base, base + state.users[resource]):
                    find(state, work.user[state.member[k]], n)
        else:
            for demand in range(work.demand_start[state.flock[flock]], work.demand_start[state.flock[flock] + 1]):
                find(state, n + work.resource[demand], n)
            flock += 1


@part
def _offer(work: Work, state: State) -> bool:
    """What each could take of the allotments offered; true if that is what it was before."""
    same = True
    for k in range(state.length[FLOCK]):
        activity = state.flock[k]
        wish, otherwise, tightest = state.top[activity], state.top[activity], NOBODY
        for demand in range(work.demand_start[activity], work.demand_start[activity + 1]):
            resource = work.resource[demand]
            if state.couples[resource]:
                offer = state.allotment[resource] / work.amount[demand]
                if offer < wish:
                    wish, otherwise, tightest = offer, offer if work.again[demand] else wish, demand
                elif offer < otherwise:
                    otherwise = offer
        same = same and abs(wish - state.wish[activity]) <= TIE * wish
        state.wish[activity], state.otherwise[activity], state.tightest[activity] = wish, otherwise, tightest
    return same


@part
def _allot(work: Work, state: State, halfway: bool) -> None:
    """The allotment of each resource that uses it up, given what its users could take of the others; or `halfway`
    (the harmonic mean) from the last to it."""
    for k in range(state.length[BASIN]):
        resource = state.basin[k]
        first, users = work.member_start[resource], state.users[resource]
        open, before = state.crowd[resource], np.inf
        allotment = state.left[resource] / open
        while state.couples[resource] and open < before:
            left, before, open = state.left[resource], open, 0.0
            for j in range(first, first + users):
                user = work.user[state.member[j]]
                limit = state.otherwise[user] if state.tightest[user] == state.member[j] else state.wish[user]
                if limit * work.amount[state.member[j]] < allotment * (1 - TIE):
                    left -= limit * work.load[state.member[j]]
                else:
                    open += work.times[state.member[j]]
            allotment = left / open if open > 0 else np.inf
        state.allotment[resource] = 2 / (1 / state.allotment[resource] + 1 / allotment) if halfway else allotment


@part
def _grow(work: Work, state: State) -> bool:
    """All that still seek a speed grow in proportion until one has its top or a resource is full; that one, or the
    resource's users, are settled. True if some still seek. This ends where the offers went in a circle."""
    growth, seek = np.inf, False
    for k in range(state.length[BASIN]):
        state.load[state.basin[k]], state.room[state.basin[k]] = 0.0, state.left[state.basin[k]]
    for k in range(state.length[FLOCK]):
        activity = state.flock[k]
        for demand in range(work.demand_start[activity], work.demand_start[activity + 1]):
            use = work.load[demand] * state.wish[activity]
            if state.settled[activity]:
                state.room[work.resource[demand]] -= use
            else:
                state.load[work.resource[demand]] += use
        if not state.settled[activity]:
            growth = min(growth, state.top[activity] / state.wish[activity])
    for k in range(state.length[BASIN]):
        resource = state.basin[k]
        if state.couples[resource] and state.load[resource] > 0:
            growth = min(growth, state.room[resource] / state.load[resource])
    for k in range(state.length[FLOCK]):
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
    for k in range(state.length[FLOCK]):
        activity = state.flock[k]
        state.found[activity] = state.settled[activity] = False
        if state.wish[activity] != state.speed[activity]:
            done = state.speed[activity] * (time - state.since[activity])
            state.remaining[activity] = max(state.remaining[activity] - done, 0.0)
            state.since[activity], state.speed[activity] = time, state.wish[activity]
            put(state, activity, time + state.remaining[activity] / state.speed[activity])
    for k in range(state.length[BASIN]):
        resource = state.basin[k]
        state.found[n + resource] = False
        if work.burst[resource] > 0 and work.peak[resource] > work.rate[resource]:
            use, base = 0.0, work.member_start[resource]
            for j in range(base, base + state.users[resource]):
                use += work.load[state.member[j]] * state.speed[work.user[state.member[j]]]
            state.use[resource], spill = use, use - work.rate[resource]
            dries = spill > SLACK * work.rate[resource] and state.tokens[resource] > 0
            put(state, n + resource, time + state.tokens[resource] / spill if dries else np.inf)
    state.length[FLOCK] = state.length[BASIN] = 0


@part
def share(work: Work, state: State, time: float) -> None:
    _spread(work, state, time)
    _offer(work, state)
    for turn in range(ROUNDS):
        _allot(work, state, turn >= FREE)
        if _offer(work, state):
            break
    while _grow(work, state):
        pass
    _apply(work, state, time)
