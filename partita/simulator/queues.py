"""The clock's two kinds of queue, compiled: events by time, and those who wait for a lane by priority.

`part` compiles a function as a part of the one loop that Python may call, drawn into it, without wrappers for Python
or reference counts: the whole then compiles in a third of the time and runs three times as fast.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numpy as np

from partita.arrays import Reals
from partita.simulator.activities import Offsets
from partita.simulator.clock_state import EVENTS, NOBODY, State, Work

Function = TypeVar("Function", bound=Callable[..., Any])
BARE: Any = {"error_model": "numpy", "no_cfunc_wrapper": True, "_nrt": False}
WAYS = 4  # children of an event in its heap: half as deep as with 2, so half as many places to write down
DRAWN_IN: Any = {"forceinline": True, "no_cpython_wrapper": True}


def part(function: Function) -> Function:
    """The function as a part of a compiled whole."""
    return untouched(numba.njit(**BARE, **DRAWN_IN), function)


def whole(function: Function) -> Function:
    """The function compiled with its parts, callable from Python, kept on disk."""
    return untouched(numba.njit(**BARE, cache=True, nogil=True), function)


def untouched(compile: Any, function: Function) -> Function:
    """Compile, and keep a type checker at run time, which wraps all that can be called, from hiding the result."""
    compiled: Any = compile(function)
    compiled.__no_type_check__ = True
    compiled.__call__ = compiled
    result: Function = compiled
    return result


@part
def sink(state: State, event: int, time: float, at: int) -> None:
    """Let an event down from a place in the heap to where it belongs."""
    key, place, heap, size = state.key, state.place, state.heap, state.length[EVENTS]
    while WAYS * at + 1 < size:
        below = WAYS * at + 1
        for other in range(below + 1, min(below + WAYS, size)):
            if key[other] < key[below]:
                below = other
        if key[below] >= time:
            break
        key[at], heap[at] = key[below], heap[below]
        place[heap[at]] = at
        at = below
    key[at], heap[at], place[event] = time, event, at


@part
def put(state: State, event: int, time: float) -> None:
    """Set the time of an event, new or known; inf parks it at the end. Events of one time come in any order: they are
    one moment."""
    key, place, heap = state.key, state.place, state.heap
    at = place[event]
    if at < 0:
        if time == np.inf:
            return
        at = state.length[EVENTS]
        state.length[EVENTS] += 1
    while at > 0 and time < key[(at - 1) // WAYS]:
        key[at], heap[at] = key[(at - 1) // WAYS], heap[(at - 1) // WAYS]
        place[heap[at]] = at
        at = (at - 1) // WAYS
    sink(state, event, time, at)


@part
def pop(state: State) -> int:
    """Take the first event."""
    event: int = state.heap[0]
    last = state.length[EVENTS] - 1
    state.length[EVENTS], state.place[event] = last, NOBODY
    if last > 0:
        sink(state, state.heap[last], state.key[last], 0)
    return event


@part
def first(priority: Offsets, ready: Reals, a: int, b: int) -> bool:
    """Whether activity `a` comes before `b` on a lane: by priority, then by when they became ready, then by number."""
    if priority[a] != priority[b]:
        return bool(priority[a] < priority[b])
    return bool(ready[a] < ready[b] or (ready[a] == ready[b] and a < b))


@part
def enqueue(work: Work, state: State, lane: int, activity: int) -> None:
    """Put an activity into the heap of those that wait for a lane."""
    line, base, at = state.waiting, work.waiting_start[lane], state.waiting_count[lane]
    state.waiting_count[lane] += 1
    while at > 0:
        above = line[base + ((at - 1) >> 1)]
        if not first(work.priority, state.start, activity, above):
            break
        line[base + at] = above
        at = (at - 1) >> 1
    line[base + at] = activity


@part
def dequeue(work: Work, state: State, lane: int) -> None:
    """Take the first activity off the heap of those that wait for a lane."""
    line, base, size, at = state.waiting, work.waiting_start[lane], state.waiting_count[lane] - 1, 0
    state.waiting_count[lane] = size
    last = line[base + size]
    while 2 * at + 1 < size:
        below = 2 * at + 1
        if below + 1 < size and first(work.priority, state.start, line[base + below + 1], line[base + below]):
            below += 1
        if not first(work.priority, state.start, line[base + below], last):
            break
        line[base + at] = line[base + below]
        at = below
    line[base + at] = last
