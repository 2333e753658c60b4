"""Speeds by the sharing law of `clock`, whose terms are used here, for all that a moment has changed."""

from __future__ import annotations

import numpy as np

from partita.simulator.clock_state import ACTIVITIES, NOBODY, RESOURCES, State, Work
from partita.simulator.queues import part, put

# Fractions: by which numbers that are equal may differ; by which a resource that is full, or a speed at its top, may
# fall short; by which the use of a bucket may leave its rate before tokens are spent or saved.
TIE, FULL, SLACK = 1e-12, 1e-11, 1e-9
FREE, ROUNDS = 20, 200  # after how many rounds allotments go halfway, and no further


@part
def mark(state: State, event: int, activities: int) -> None:
    """Add an activity, or n + a resource, to those whose rates change."""
    if not state.marked[event]:
        state.marked[event] = True
        if event < activities:
            state.changed_activities[state.length[ACTIVITIES]] = event
            state.length[ACTIVITIES] += 1
        else:
            state.changed_resources[state.length[RESOURCES]] = event - activities
            state.length[RESOURCES] += 1


@part
def start_flow(work: Work, state: State, activity: int, time: float) -> None:
    """Its demands begin to flow."""
    top = 1 / work.least[activity]
    state.speed[activity] = 0.0
    state.since[activity] = time
    for demand in range(work.demand_start[activity], work.demand_start[activity + 1]):
        resource = work.resource[demand]
        top = min(top, work.peak[resource] / work.amount[demand])
        state.user_place[demand] = state.users[resource]
        state.user_demand[work.user_start[resource] + state.users[resource]] = demand
        state.users[resource] += 1
    state.top[activity] = top
    mark(state, activity, len(state.end))


@part
def end_flow(work: Work, state: State, activity: int) -> None:
    """Its demands flow no more."""
    for demand in range(work.demand_start[activity], work.demand_start[activity + 1]):
        resource = work.resource[demand]
        state.users[resource] -= 1
        last = state.user_demand[work.user_start[resource] + state.users[resource]]
        state.user_demand[work.user_start[resource] + state.user_place[demand]] = last
        state.user_place[last] = state.user_place[demand]
        mark(state, len(state.end) + resource, len(state.end))


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
    load, user_count, base, before = 0.0, 0.0, work.user_start[resource], state.contended[resource]
    for k in range(base, base + state.users[resource]):
        load += work.load[state.user_demand[k]] * state.top[work.user[state.user_demand[k]]]
        user_count += work.times[state.user_demand[k]]
    state.capacity[resource] = capacity
    state.user_count[resource] = user_count
    state.allotment[resource] = capacity / user_count
    state.contended[resource] = load > capacity * (1 + SLACK)
    return bool(before or state.contended[resource])


@part
def _spread_changes(work: Work, state: State, time: float) -> None:
    """Find all whose rates may change: what hangs together with the changed through resources that bind."""
    n, length, next_activity, next_resource = len(state.end), state.length, 0, 0
    while next_activity < length[ACTIVITIES] or next_resource < length[RESOURCES]:
        if next_resource < length[RESOURCES]:
            resource = state.changed_resources[next_resource]
            next_resource += 1
            if _binds(work, state, resource, time):
                base = work.user_start[resource]
                for k in range(base, base + state.users[resource]):
                    mark(state, work.user[state.user_demand[k]], n)
        else:
            activity = state.changed_activities[next_activity]
            for demand in range(work.demand_start[activity], work.demand_start[activity + 1]):
                mark(state, n + work.resource[demand], n)
            next_activity += 1


@part
def _offer(work: Work, state: State) -> bool:
    """What each could take of the allotments offered; true if that is what it was before."""
    same = True
    for k in range(state.length[ACTIVITIES]):
        activity = state.changed_activities[k]
        target, without_tightest, tightest = state.top[activity], state.top[activity], NOBODY
        for demand in range(work.demand_start[activity], work.demand_start[activity + 1]):
            resource = work.resource[demand]
            if state.contended[resource]:
                offer = state.allotment[resource] / work.amount[demand]
                if offer < target:
                    target, without_tightest, tightest = offer, offer if work.again[demand] else target, demand
                elif offer < without_tightest:
                    without_tightest = offer
        same = same and abs(target - state.target[activity]) <= TIE * target
        state.target[activity], state.tightest[activity] = target, tightest
        state.without_tightest[activity] = without_tightest
    return same


@part
def _allot(work: Work, state: State, halfway: bool) -> None:
    """The allotment of each resource that uses it up, given what its users could take of the others; or `halfway`
    (the harmonic mean) from the last to it."""
    for k in range(state.length[RESOURCES]):
        resource = state.changed_resources[k]
        first, users = work.user_start[resource], state.users[resource]
        open, before = state.user_count[resource], np.inf
        allotment = state.capacity[resource] / open
        while state.contended[resource] and open < before:
            left, before, open = state.capacity[resource], open, 0.0
            for j in range(first, first + users):
                user = work.user[state.user_demand[j]]
                tightest = state.tightest[user] == state.user_demand[j]
                limit = state.without_tightest[user] if tightest else state.target[user]
                if limit * work.amount[state.user_demand[j]] < allotment * (1 - TIE):
                    left -= limit * work.load[state.user_demand[j]]
                else:
                    open += work.times[state.user_demand[j]]
            allotment = left / open if open > 0 else np.inf
        state.allotment[resource] = 2 / (1 / state.allotment[resource] + 1 / allotment) if halfway else allotment


@part
def _grow(work: Work, state: State) -> bool:
    """All that still seek a speed grow in proportion until one has its top or a resource is full; that one, or the
    resource's users, are settled. True if some still seek. This ends where the offers went in a circle."""
    growth, seek = np.inf, False
    for k in range(state.length[RESOURCES]):
        resource = state.changed_resources[k]
        state.load[resource], state.room[resource] = 0.0, state.capacity[resource]
    for k in range(state.length[ACTIVITIES]):
        activity = state.changed_activities[k]
        for demand in range(work.demand_start[activity], work.demand_start[activity + 1]):
            use = work.load[demand] * state.target[activity]
            if state.settled[activity]:
                state.room[work.resource[demand]] -= use
            else:
                state.load[work.resource[demand]] += use
        if not state.settled[activity]:
            growth = min(growth, state.top[activity] / state.target[activity])
    for k in range(state.length[RESOURCES]):
        resource = state.changed_resources[k]
        if state.contended[resource] and state.load[resource] > 0:
            growth = min(growth, state.room[resource] / state.load[resource])
    for k in range(state.length[ACTIVITIES]):
        activity = state.changed_activities[k]
        if state.settled[activity]:
            continue
        state.target[activity] *= growth
        settled = state.target[activity] >= state.top[activity] * (1 - FULL)
        for demand in range(work.demand_start[activity], work.demand_start[activity + 1]):
            resource = work.resource[demand]
            full = state.room[resource] <= growth * state.load[resource] * (1 + FULL)
            settled = settled or (state.contended[resource] and full)
        state.settled[activity] = settled
        seek = seek or not settled
    return seek


@part
def _apply(work: Work, state: State, time: float) -> None:
    """Foresee the ends at the new speeds and the moments at which buckets run dry."""
    n = len(state.end)
    for k in range(state.length[ACTIVITIES]):
        activity = state.changed_activities[k]
        state.marked[activity] = state.settled[activity] = False
        if state.target[activity] != state.speed[activity]:
            done = state.speed[activity] * (time - state.since[activity])
            state.remaining[activity] = max(state.remaining[activity] - done, 0.0)
            state.since[activity], state.speed[activity] = time, state.target[activity]
            put(state, activity, time + state.remaining[activity] / state.speed[activity])
    for k in range(state.length[RESOURCES]):
        resource = state.changed_resources[k]
        state.marked[n + resource] = False
        if work.burst[resource] > 0 and work.peak[resource] > work.rate[resource]:
            use, base = 0.0, work.user_start[resource]
            for j in range(base, base + state.users[resource]):
                use += work.load[state.user_demand[j]] * state.speed[work.user[state.user_demand[j]]]
            state.use[resource], spill = use, use - work.rate[resource]
            dries = spill > SLACK * work.rate[resource] and state.tokens[resource] > 0
            put(state, n + resource, time + state.tokens[resource] / spill if dries else np.inf)
    state.length[ACTIVITIES] = state.length[RESOURCES] = 0


@part
def share(work: Work, state: State, time: float) -> None:
    """Give all whose rates may have changed their speeds, and foresee their ends."""
    _spread_changes(work, state, time)
    _offer(work, state)
    for turn in range(ROUNDS):
        _allot(work, state, turn >= FREE)
        if _offer(work, state):
            break
    while _grow(work, state):
        pass
    _apply(work, state, time)
