"""The best point of each family by formula, as long as it may be better than what was clocked.

A family is an order of passes, on any devices or inside one machine. What the search opens first it opens by formula
and bounds: where these misjudge a family as a whole, its settings take all the room there is for clocking.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from partita.arrays import Reals
from partita.cluster.cluster import Cluster
from partita.cost.launching import joined
from partita.searches.best_first import BestFirst
from partita.searches.candidate import Candidate
from partita.searches.estimates import Estimates
from partita.searches.exhaustive import simulated
from partita.searches.footprint import rooms_of
from partita.searches.lower_bounds import LowerBounds
from partita.searches.space import SCHEDULES
from partita.telling import Tell


def with_families(
    rest: BestFirst, found: Sequence[Candidate], estimates: Estimates, bounds: LowerBounds, *, objective: str,
    allow: str, tell: Tell,
) -> BestFirst:  # fmt: skip
    """What a search found beside `found`, and of each family the point that is best by formula, if that says that it
    is better than all that were clocked."""
    space, graph, cluster, costs = estimates.space, rest.costs.graph, rest.costs.cluster, rest.costs
    every = [*found, *rest.candidates]
    known, more, points = {one.plan.name for one in every}, list[Candidate](), list[int]()
    worth = worth_of(estimates, objective)
    for i in sorted(families(estimates, worth, cluster), key=lambda i: worth[i]):
        best = min((_worth(one, objective) for one in (*every, *more) if one.fits), default=np.inf)
        if worth[i] < best and space.call(i) not in known:
            costs = joined(costs, bounds.places.sheet(bounds.size(space, i)))
            call = space.call(i)
            clocked, _ = simulated(graph, cluster, costs, calls=[call], objective=objective, allow=allow, tell=tell)
            more.extend(clocked)
            points.extend([i] * len(clocked))
    return replace(
        rest, candidates=(*rest.candidates, *more), clocked=rest.clocked + len(more), costs=costs,
        points=(*rest.points, *points),
    )  # fmt: skip


def families(estimates: Estimates, worth: Reals, cluster: Cluster) -> Iterator[int]:
    """The point of each family that fits and has least of `worth`, a number for each point."""
    space, devices = estimates.space, estimates.devices.astype(np.int64)
    fits = estimates.fitting(rooms_of(cluster)[devices])
    inside = devices <= cluster.machines.count(cluster.machines[0])
    for schedule in range(len(SCHEDULES)):
        family = fits & (space.column("schedule") == schedule)
        for some in (np.flatnonzero(family), np.flatnonzero(family & inside)):
            if len(some):
                yield int(some[worth[some].argmin()])


def worth_of(estimates: Estimates, objective: str) -> Reals:
    """What is to be small, of every point: bytes, seconds of all its devices, or seconds."""
    others = {"memory": estimates.memory, "cost": estimates.seconds * estimates.devices}
    return others.get(objective, estimates.seconds)


def _worth(candidate: Candidate, objective: str) -> float:
    """The same of a candidate, by the clock."""
    timeline = candidate.timeline
    others = {"memory": float(max(timeline.memory)), "cost": timeline.step_seconds * timeline.ranks}
    return others.get(objective, timeline.step_seconds)
