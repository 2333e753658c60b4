"""The loop of the clock, compiled: moments, waves of ends and starts, lanes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from zlib import crc32

import numpy as np

from partita.simulator.clock_state import (
    AT_GATE,
    DIGEST,
    ENDED,
    EVENTS,
    NOBODY,
    OPEN,
    READY,
    SKIPPED,
    STARTED,
    SWEPT_ENDED,
    SWEPT_OPEN,
    SWEPT_READY,
    THROUGH,
    State,
    Work,
)
from partita.simulator.queues import dequeue, enqueue, part, pop, put, whole
from partita.simulator.sharing import end_flow, mark, share, start_flow

MOMENT = 1e-12  # events less than this (relative) apart are one moment


@part
def _handle_event(work: Work, state: State, event: int, time: float) -> None:
    """A token bucket is empty, an activity's latency is over, or it ends."""
    n = len(state.end)
    if event >= n:
        state.tokens[event - n] = 0.0
        state.counted[event - n] = time
        mark(state, event, n)
        return
    if work.demand_start[event] < work.demand_start[event + 1]:
        if state.speed[event] < 0:
            start_flow(work, state, event, time)
            return
        end_flow(work, state, event)
    state.ended[state.length[ENDED]] = event
    state.length[ENDED] += 1


@part
def _begin(work: Work, state: State, activity: int, time: float) -> None:
    state.start[activity] = time
    for k in range(work.lane_start[activity], work.lane_start[activity + 1]):
        dequeue(work, state, work.lane[k])
        state.spare[work.lane[k]] -= work.lane_weight[k]
        if state.spare[work.lane[k]] > 0:
            state.open[state.length[OPEN]] = work.lane[k]
            state.length[OPEN] += 1
    flows = work.demand_start[activity] < work.demand_start[activity + 1]
    delay = work.latency[activity] + (0.0 if flows else work.least[activity])
    if delay > 0:
        put(state, activity, time + delay)
    else:
        _handle_event(work, state, activity, time)


@part
def _try(work: Work, state: State, lane: int, time: float) -> None:
    """Begin the first in line on a lane, where it is so on all of its own lanes and they have room."""
    if state.waiting_count[lane] == 0 or state.spare[lane] <= 0:
        return
    head = state.waiting[work.waiting_start[lane]]
    for j in range(work.lane_start[head], work.lane_start[head + 1]):
        other = work.lane[j]
        if state.spare[other] <= 0 or state.waiting[work.waiting_start[other]] != head:
            return
    _begin(work, state, head, time)


@part
def _release(work: Work, state: State, activity: int, time: float) -> None:
    """Record an end; free its lanes and make ready the successors that waited for nothing else."""
    state.end[activity] = time
    if state.speed[activity] != SKIPPED:
        for k in range(work.freed_start[activity], work.freed_start[activity + 1]):
            state.spare[work.freed[k]] += work.freed_weight[k]
    for k in range(work.successor_start[activity], work.successor_start[activity + 1]):
        successor = work.successor[k]
        state.missing[successor] -= 1
        if state.missing[successor] == 0:
            state.ready[state.length[READY]] = successor
            state.length[READY] += 1


@part
def _admit(work: Work, state: State, activity: int, time: float) -> None:
    """Put a ready activity into the lines of its lanes, hold it at its gate, or end it where its guard has finished."""
    state.start[activity] = time
    if state.gate_state[activity] == AT_GATE:
        state.held[work.gate_member[activity]] = activity
    elif work.guard[activity] >= 0 and state.end[work.guard[activity]] <= time:
        state.speed[activity] = SKIPPED
        state.ended[state.length[ENDED]] = activity
        state.length[ENDED] += 1
    else:
        for k in range(work.lane_start[activity], work.lane_start[activity + 1]):
            enqueue(work, state, work.lane[k], activity)


@part
def _opened(work: Work, state: State) -> bool:
    """Whether a gate opens; who waited there is ready anew."""
    found = False
    for gate in range(len(work.gate_need)):
        waiting, coming, overdue = 0, 0, False
        for k in range(work.gate_start[gate], work.gate_start[gate + 1]):
            if state.coming[k] > 0:
                coming += 1
                if state.held[k] != NOBODY:
                    waiting += 1
                elif work.gate_within[gate] > 0 and state.age[k] + 1 >= work.gate_within[gate]:
                    overdue = True
        if waiting == 0 or overdue or waiting < min(work.gate_need[gate], coming):
            continue
        found = True
        for k in range(work.gate_start[gate], work.gate_start[gate + 1]):
            if state.held[k] != NOBODY:
                state.ready[state.length[READY]] = state.held[k]
                state.length[READY] += 1
                state.gate_state[state.held[k]] = THROUGH
                state.held[k] = NOBODY
                state.coming[k] -= 1
                state.age[k] = 0
            elif state.coming[k] > 0:
                state.age[k] += 1
    return found


@part
def _react(work: Work, state: State, time: float) -> None:
    """All that follows within this moment, wave by wave."""
    length = state.length
    ended, ready = length[SWEPT_ENDED], length[SWEPT_READY]
    while ended < length[ENDED] or ready < length[READY]:
        first_ended, first_ready = ended, ready
        while ended < length[ENDED] or ready < length[READY] or _opened(work, state):
            while ended < length[ENDED]:
                _release(work, state, state.ended[ended], time)
                ended += 1
            while ready < length[READY]:
                _admit(work, state, state.ready[ready], time)
                ready += 1
        for k in range(first_ended, ended):
            activity = state.ended[k]
            for j in range(work.freed_start[activity], work.freed_start[activity + 1]):
                _try(work, state, work.freed[j], time)
        for k in range(first_ready, ready):
            activity = state.ready[k]
            if work.lane_start[activity] < work.lane_start[activity + 1]:
                for j in range(work.lane_start[activity], work.lane_start[activity + 1]):
                    _try(work, state, work.lane[j], time)
            elif (
                state.end[activity] == np.inf
                and state.gate_state[activity] == (work.gate_member[activity] >= 0) * THROUGH
            ):
                state.gate_state[activity] = STARTED
                _begin(work, state, activity, time)
        while length[SWEPT_OPEN] < length[OPEN]:
            length[SWEPT_OPEN] += 1
            _try(work, state, state.open[length[SWEPT_OPEN] - 1], time)
    length[SWEPT_ENDED], length[SWEPT_READY] = ended, ready


@part
def _run_events(work: Work, state: State) -> None:
    """Moment after moment, until nothing more can happen; those that never could keep an end of inf."""
    time = 0.0
    for activity in range(len(state.end)):
        if state.missing[activity] <= 0:
            state.ready[state.length[READY]] = activity
            state.length[READY] += 1
    while True:
        _react(work, state, time)
        share(work, state, time)
        if state.length[EVENTS] == 0 or state.key[0] == np.inf:
            break
        time = state.key[0]
        while state.length[EVENTS] > 0 and state.key[0] <= time * (1 + MOMENT):
            _handle_event(work, state, pop(state), time)


def _compiled(digest: int) -> Callable[[Work, State], None]:
    """The loop as one function of Python. What is compiled is kept on disk, not under the text of the parts that are
    drawn into it: so `digest`, which stands for that text, is a free variable, which is part of the key."""

    @whole
    def loop(work: Work, state: State) -> None:
        state.length[DIGEST] = digest
        _run_events(work, state)

    return loop


PARTS = ("clock_loop", "clock_state", "queues", "sharing")
run = _compiled(crc32(b"".join(Path(__file__).with_stem(name).read_bytes() for name in PARTS)))
