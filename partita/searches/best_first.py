"""Best-first search: points that could still be better than the best one known are simulated, the most promising first.

all points --rough bound--> open ones --bound of their own cuts--> fewer --closer bound--> each --clock--> best, and
                                                                                    what none is below
What is simulated does not depend on the order, as long as what bounds rule out comes last: whatever is bound to take
less than the best has to be. So first comes what the formula says is quick: all after it need not be worked out whole.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import inf
from typing import Final

import numpy as np

from partita.cost.costs import Costs
from partita.cost.launching import joined
from partita.errors import InputError
from partita.lowering.lower import last_program
from partita.recipes.catalogue import call
from partita.searches.candidate import Candidate, candidate_of
from partita.searches.estimates import Estimates
from partita.searches.lower_bounds import LowerBounds
from partita.searches.rough_bounds import rough_bounds
from partita.simulator.simulate import clocked
from partita.telling import Tell
from partita.units import Seconds

FEW_DEVICES: Final = 16
MOST_CLOCKED: Final = (8, 64)  # on many devices, on few, where the clock is quick
SMALL: Final = 2**16  # instructions of all ranks, up to which more are clocked on few devices


@dataclass(frozen=True)
class BestFirst:
    """What the search found.

    candidates, points  plans that were faster than all before, each in turn, those that fit last; and their points
    clocked             how many plans were simulated to find them
    bound               no point that fits has a shorter step: the fastest one's, unless MOST_CLOCKED points, or SMALL
                        ones, were too few to tell
    costs               those given, and of operators in batches that no plan before had
    """

    candidates: tuple[Candidate, ...]
    clocked: int
    bound: Seconds
    costs: Costs
    points: tuple[int, ...] = ()


def best_first(
    estimates: Estimates, bounds: LowerBounds, costs: Costs, best: Seconds, known: Collection[str],
    tell: Tell, guess: Seconds = inf,
) -> BestFirst:  # fmt: skip
    """What is left of the space where plans that are `known` have been clocked, of which the fastest that fits takes
    `best`. What is bound to take the `guess` or more is opened only where nothing takes less."""
    space, found, points, clocked = estimates.space, list[Candidate](), list[int](), 0
    few, seen, written = costs.cluster.size <= FEW_DEVICES, set[tuple[int, ...]](), 0
    room = max(device.memory or inf for device in costs.cluster.devices)
    line, limit = list[_Point](), 0.0
    while line or limit < best:
        if not line:
            limit = best if limit else min(guess, best)
            heapify(line := _open(estimates, bounds, room, limit))
            continue
        one = heappop(line)
        if one.bound >= best:
            continue
        i = one.point
        if not one.closer:
            bound = float(bounds.steps.seconds(space.some([i]), closer=True)[0])
            heappush(line, _Point(max(bound, one.formula), bound, one.formula, i, closer=True))
            continue
        alike = bounds.lowered_alike(space.some([i]))
        if space.call(i) in known or alike in seen:
            continue
        seen.add(alike)
        if bounds.peaks.memory(space.some([i]), closer=True)[0] > room:
            continue
        if clocked >= MOST_CLOCKED[few] and not (few and written < SMALL):
            least = min(one.bound, best, limit, *(other.bound for other in line))  # what is not opened begins there
            return BestFirst(_ordered(found), clocked, least, costs, tuple(points))
        clocked += 1
        tell(f"plans simulated that may be faster: {clocked}")
        costs = joined(costs, bounds.places.sheet(bounds.places.samples(space, i)))
        better, length = _better(space.call(i), costs, best)
        written += length
        if better:
            found.append(better)
            points.append(i)
            best = better.timeline.step_seconds if better.fits else best
    return BestFirst(_ordered(found), clocked, best, costs, tuple(points))


def _ordered(found: list[Candidate]) -> tuple[Candidate, ...]:
    """Those that fit behind the others."""
    return tuple(sorted(found, key=lambda one: one.fits))


@dataclass(frozen=True, slots=True, order=True)
class _Point:
    """A point that may be better than the best one: at the soonest after `likely` seconds, which is what the `formula`
    says, or its lower `bound`; whether that is the `closer` one."""

    likely: Seconds
    bound: Seconds
    formula: Seconds
    point: int
    closer: bool = False


def _open(estimates: Estimates, bounds: LowerBounds, room: float, best: Seconds) -> list[_Point]:
    """The points with bounds below `best` that may fit devices of so much room."""
    space = estimates.space
    edges = np.r_[True, (space.shapes[1:] != space.shapes[:-1]).any(axis=1)]
    first = np.flatnonzero(edges)  # of points that differ in their buckets only, the smallest of which are last
    last = np.append(first[1:], len(space)) - 1
    bound, held = rough_bounds(space.some(first), bounds.places)
    left = np.flatnonzero((bound < best) & (held <= room))
    bound = bounds.steps.seconds(space.some(first[left]))
    left, bound = left[bound < best], bound[bound < best]
    fits = bounds.peaks.memory(space.some(last[left])) <= room
    left, bound = left[fits], bound[fits]
    many = last[left] - first[left] + 1
    points, bound = np.repeat(last[left] + 1 - np.cumsum(many), many) + np.arange(many.sum()), np.repeat(bound, many)
    fits = bounds.peaks.memory(space.some(points)) <= room
    points, bound = points[fits], bound[fits]
    formula = estimates.seconds[points]
    columns = np.maximum(bound, formula), bound, formula, points
    return [_Point(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]


def _better(text: str, costs: Costs, best: Seconds) -> tuple[Candidate | None, int]:
    """The candidate of a call, if it takes less than `best`, whether it fits or not; and how many instructions its
    ranks have."""
    graph, cluster = costs.graph, costs.cluster
    try:
        program = last_program(graph, plan := call(text, graph, cluster), cluster, clocked=True)
    except InputError:
        return None, 0
    run = clocked(program, costs)
    if run.seconds >= best:
        return None, program.length
    return candidate_of(plan, program, run.timeline(), cluster), program.length
