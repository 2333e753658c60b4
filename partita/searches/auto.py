"""The search behind `auto`: every point of the grid is priced by a formula; the best ones are simulated by the event
clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from math import inf
from typing import Final

import numpy as np

from partita.cost.costs import Costs
from partita.graph.gc_pause import without_gc
from partita.graph.precision import shortened
from partita.lowering.precision import FORMATS
from partita.plan.memory import Precision
from partita.plan.plan import Plan
from partita.searches.best_first import FEW_DEVICES, BestFirst, best_first
from partita.searches.candidate import Candidate, recipe_of
from partita.searches.codings import coded_fitting, coded_points, lower_bound_of
from partita.searches.estimates import Estimates
from partita.searches.exhaustive import simulated
from partita.searches.explaining import MOST_RANKS
from partita.searches.families import with_families
from partita.searches.footprint import rooms_of
from partita.searches.lower_bounds import LowerBounds
from partita.searches.objective import ALLOWED
from partita.searches.ranking import At, ranked
from partita.searches.search import Search
from partita.searches.shortlist import Shortlist, formats_of
from partita.telling import Tell, quiet
from partita.units import Seconds

UNDERRATED: Final = (0.02, 0.15)  # by which it underrates a step, and may at the most: none is as fast as it says


@without_gc()
def auto(
    shortlist: Shortlist, costs: Costs, *, objective: str = "time", allow: str = "exact",
    tell: Tell = quiet,
) -> Search:  # fmt: skip
    """The plans of `shortlist`, simulated by the event clock and ranked. Where `costs` are those that priced it, and
    time is the objective, every other point of the grid that could still be faster is simulated too; where that would
    be too many, or for another objective, of each family the best by formula. The gap printed is to the lowest bound of
    any point that was not simulated; where plans may be lossy, with any codec or without, in TF32 or not.

    Raises PlanError where no plan applies.
    """
    graph, cluster, estimates, rest = costs.graph, costs.cluster, shortlist.estimates, BestFirst((), 0, 0.0, costs)
    begun, plans, names = time.perf_counter(), shortlist.plans, set[str]()
    whole = costs.source == shortlist.costs.source and objective in ("time", "time-to-loss")
    bounds = LowerBounds(graph, cluster, shortlist.measured)
    if whole and cluster.size > FEW_DEVICES:  # each plan takes the clock a while: those first that bounds point to
        least = min((each.seconds for each in shortlist.listed), default=inf)
        guess, most = (least * (1 + part) for part in UNDERRATED)
        rest = best_first(estimates, bounds, costs, most, (), tell, guess)
        recipes = {recipe_of(one.plan.name) for one in rest.candidates}
        if any(one.fits for one in rest.candidates):  # and what is ranked beside it is of another recipe, or has codecs
            other = tuple(p for p in plans if recipe_of(p.name) not in recipes)[: len(recipes) < 2]
            plans = (*other, *(p for p in plans if p not in other and _rounds(p)))
    found, refused = list[Candidate](), list[tuple[str, str]]()
    if plans:
        found, refused = simulated(graph, cluster, costs, calls=plans, objective=objective, allow=allow, tell=tell)
    if whole and not any(one.fits for one in rest.candidates):
        best = min((c.timeline.step_seconds for c in found if c.fits), default=inf)
        early, names = rest.clocked, {plan.name for plan in plans}
        rest = best_first(estimates, bounds, costs, best, names, tell)
        rest = replace(rest, clocked=rest.clocked + early)
    sure = whole and rest.bound >= min(
        (c.timeline.step_seconds for c in (*found, *rest.candidates) if c.fits), default=inf
    )
    if costs.source == shortlist.costs.source and not sure:
        rest = with_families(rest, found, estimates, bounds, objective=objective, allow=allow, tell=tell)
    every = (*found, *rest.candidates)
    by_formula = _by_formula(estimates, (*shortlist.points, *rest.points)) if cluster.size > MOST_RANKS else None
    bound, space, fitting = rest.bound, len(estimates.space), shortlist.fitting
    if bound == inf:  # no plan fits, so that this is about none: what computing alone takes holds for each
        bound = float(bounds.steps.computing(estimates.space).min())
    if "lossy" in ALLOWED[allow] and objective != "time-to-loss":
        bound, space = min(bound, lower_bound_of(estimates.space, bounds)), space + coded_points(estimates.space)
        fitting += coded_fitting(estimates, graph, rooms_of(cluster)[estimates.devices.astype(np.int64)])
        for each in formats_of(graph, cluster, objective):
            quick = LowerBounds(shortened(graph, FORMATS[each]), cluster, shortlist.measured)
            bound, space = min(bound, float(quick.steps.computing(estimates.space).min())), space + len(estimates.space)
            fitting += shortlist.fitting  # masters make up for short weights, and TF32 keeps all as it is
    search = ranked(graph, rest.costs, every, (*shortlist.refused, *refused), objective, bound, by_formula)
    return replace(
        search, search_seconds=time.perf_counter() - begun, space=space, fitting=fitting,
        clocked=len(found) + rest.clocked,
    )  # fmt: skip


def _rounds(plan: Plan) -> bool:
    return plan.memory.precision is Precision.TF32 or any(sync.wire.codecs for sync in plan.sync)


def _by_formula(estimates: Estimates, points: tuple[int, ...]) -> At:
    """A point's step where all links are so many times as wide: the simulated step, scaled by what the formula says.
    None for plans that are no point of the grid."""
    place = {estimates.space.call(i): i for i in points}

    def of(candidate: Candidate) -> Callable[[float], Seconds] | None:
        if candidate.plan.name not in place:
            return None
        some = estimates.space.some([place[candidate.plan.name]])
        here = candidate.timeline.step_seconds / float(estimates.step_seconds(some, 1.0)[0])
        return lambda factor: here * float(estimates.step_seconds(some, factor)[0])

    return of
