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
from partita.searches.objective import objective_value, objective_values
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
    worth = objective_values(estimates, cluster, objective)
    for i in sorted(families(estimates, worth, cluster), key=lambda i: worth[i]):
        clocked = (objective_value(one, cluster, objective) for one in (*every, *more) if one.fits)
        best = min(clocked, default=np.inf)
        if worth[i] < best and space.call(i) not in known:
            costs = joined(costs, bounds.places.sheet(bounds.places.samples(space, i)))
            call = space.call(i)
            one, _ = simulated(graph, cluster, costs, calls=[call], objective=objective, allow=allow, tell=tell)
            more.extend(one)
            points.extend([i] * len(one))
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
