"""Points that could still be better than the best one known, on the event clock: those with the lowest floors first.

all points --rough floor--> open ones --floor of their own cuts--> fewer --clock--> best, and what none is below
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
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
from partita.searches.space import Space
from partita.simulator.simulate import setting_of, simulate, step_seconds
from partita.units import Seconds

FEW_DEVICES: Final = 16
MOST_CLOCKED: Final = (2, 64)  # on many devices, on few, where the clock is quick


@dataclass(frozen=True)
class Exhausted:
    """The `candidates` that fit and were the fastest so far, each in turn, and their `points`; how many were `clocked`
    to find them; and `floor`, which no point takes less than: the fastest one's step, unless MOST_CLOCKED points
    were too few to tell."""

    candidates: tuple[Candidate, ...]
    clocked: int
    floor: Seconds
    points: tuple[int, ...] = ()


def exhausted(
    screen: Screen, floors: Floors, costs: Costs, best: Seconds, known: Collection[str], tell: Callable[[str], None]
) -> Exhausted:
    """What is left of the space where plans that are `known` have been clocked, of which the fastest that fits takes
    `best`."""
    rows, found, points, clocked = screen.space.rows, list[Candidate](), list[int](), 0
    few = costs.cluster.size <= FEW_DEVICES
    for least, i in _open(screen, floors, costs, best):
        if least >= best:
            break
        if screen.space.call(i) in known:
            continue
        if clocked == MOST_CLOCKED[few]:
            return Exhausted(tuple(found), clocked, least, tuple(points))
        clocked += 1
        tell(f"simulated {clocked} plans more that may be faster")
        prices = {**costs.operators, **floors.places.costs(floors.size(rows[i])).operators}
        better = _better(screen.space.call(i), replace(costs, operators=prices, _sums={}), best)
        if better:
            found.append(better)
            points.append(i)
            best = better.timeline.step_seconds
    return Exhausted(tuple(found), clocked, best, tuple(points))


def _open(screen: Screen, floors: Floors, costs: Costs, best: Seconds) -> Iterator[tuple[Seconds, int]]:
    """The points with floors below `best` that may fit, and these floors, lowest first."""
    rows, room = screen.space.rows, max(device.memory or inf for device in costs.cluster.devices)
    edges = np.r_[True, (rows[1:, :-1] != rows[:-1, :-1]).any(axis=1)]
    first = np.flatnonzero(edges)  # of points that differ in their buckets only, the smallest of which are last
    last = np.append(first[1:], len(rows)) - 1
    bound, held = floors.rough(Space(rows[first]))
    left = np.flatnonzero((bound < best) & (held <= room))
    bound = floors.seconds(Space(rows[first[left]]))
    left, bound = left[bound < best], bound[bound < best]
    fits = floors.memory(Space(rows[last[left]])) <= room
    left, bound = left[fits], bound[fits]
    many = last[left] - first[left] + 1
    points, bound = np.repeat(last[left] + 1 - np.cumsum(many), many) + np.arange(many.sum()), np.repeat(bound, many)
    fits = floors.memory(Space(rows[points])) <= room
    points, bound = points[fits], bound[fits]
    for k in np.lexsort((screen.seconds[points], bound)).tolist():
        yield float(bound[k]), int(points[k])


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
