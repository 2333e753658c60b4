"""Points that could still be better than the best one known, on the event clock: those with the lowest floors first.

all points --rough floor--> open ones --floor of their own cuts--> fewer --clock--> best, and what none is below
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from math import inf
from typing import Final

import numpy as np

from partita.cost.costs import Costs
from partita.errors import InputError
from partita.lowering.lower import lower
from partita.recipes.catalogue import call
from partita.searches.exhaustive import Candidate, fits
from partita.searches.floors import Floors
from partita.searches.screen import Screen
from partita.simulator.simulate import setting_of, simulate, step_seconds
from partita.units import Seconds

FEW_DEVICES: Final = 16
MOST_CLOCKED: Final = (1, 64)  # on many devices, on few, where the clock is quick
MOST_FLOORS: Final = 512
ROUGH, OWN = 0, 1


@dataclass(frozen=True)
class Exhausted:
    """The `candidates` that fit and were the fastest so far, each in turn, and their `points`; how many were `clocked`
    to find them; and `floor`, which no point takes less than: the fastest one's step, unless MOST_CLOCKED points, or
    the floors of MOST_FLOORS, were too few to tell."""

    candidates: tuple[Candidate, ...]
    clocked: int
    floor: Seconds
    points: tuple[int, ...] = ()


def exhausted(
    screen: Screen, floors: Floors, costs: Costs, best: Seconds, known: Collection[str], tell: Callable[[str], None]
) -> Exhausted:
    """What is left of the space where plans that are `known` have been clocked, of which the fastest that fits takes
    `best`."""
    rows, found, points, clocked, looked = screen.space.rows, list[Candidate](), list[int](), 0, 0
    room = max(device.memory or inf for device in costs.cluster.devices)
    edges = np.r_[True, (rows[1:, :-1] != rows[:-1, :-1]).any(axis=1)]
    first = np.flatnonzero(edges)  # of points that differ in their buckets only
    after = np.append(first[1:], len(rows))
    bound, held = floors.rough(replace(screen.space, rows=rows[first]))
    left = np.flatnonzero((bound < best) & (held <= room)).tolist()
    heap = [(float(bound[k]), ROUGH, 0.0, k) for k in left]
    heapify(heap)
    few = costs.cluster.size <= FEW_DEVICES
    while heap and heap[0][0] < best:
        least, kind, _, i = heappop(heap)
        if kind == ROUGH:
            looked += 1
            if looked > MOST_FLOORS:
                return Exhausted(tuple(found), clocked, least, tuple(points))
            for k in range(int(first[i]), int(after[i])):
                floor = floors.of(tuple(rows[k].tolist()))
                if floor.memory <= room and floor.seconds < best:
                    heappush(heap, (max(least, floor.seconds), OWN, float(screen.seconds[k]), k))
        elif screen.space.call(i) not in known:
            if clocked == MOST_CLOCKED[few]:
                return Exhausted(tuple(found), clocked, least, tuple(points))
            clocked += 1
            tell(f"simulated {clocked} plans more that may be faster")
            prices = {**costs.operators, **floors.costs(floors.size(rows[i])).operators}
            better = _better(screen.space.call(i), replace(costs, operators=prices, _sums={}), best)
            if better:
                found.append(better)
                points.append(i)
                best = better.timeline.step_seconds
    return Exhausted(tuple(found), clocked, best, tuple(points))


def _better(text: str, costs: Costs, best: Seconds) -> Candidate | None:
    """The candidate of a call, if it fits and takes less than `best`."""
    graph, cluster = costs.graph, costs.cluster
    try:
        program = lower(graph, plan := call(text, graph, cluster), cluster)[-1].program
    except InputError:
        return None
    setting = setting_of(program, costs)
    if step_seconds(program, costs, setting=setting) >= best:
        return None
    timeline = simulate(program, costs, setting=setting)
    return Candidate(plan, timeline, program.semantics, True) if fits(timeline, cluster) else None
