"""A search where costs can be measured: data sheets rank everything, measured costs judge the best of it.

usual plan --measured--> speed of devices, links --their data sheets, all points--> best few --measured--> ranked

Beside each of the few whose recipe lets it, the same with all-reduces by the algorithm that was timed to be quickest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Final

from partita.cluster.cluster import Cluster
from partita.cost.costs import Costs
from partita.graph.graph import Graph
from partita.lowering.samples import sizes_of
from partita.plan.memory import Shard
from partita.plan.plan import Plan
from partita.recipes.fastest import ALIKE
from partita.recipes.reading import choosing_collective
from partita.searches.candidate import Candidate, plainness, recipe_of
from partita.searches.exhaustive import exhaustive
from partita.searches.explaining import bottleneck
from partita.searches.objective import LEADS, objective_value
from partita.searches.peaks import ERROR
from partita.searches.search import Search
from partita.telling import Tell
from partita.units import show_bytes

# Every batch size whose operators are to be timed takes seconds on half a core: the whole grid would take minutes.
FINALISTS: Final = 8
OF_ONE_RECIPE: Final = 3
ALONE: Final = "single"
FAR: Final = 2.0  # by which a screening misjudges one device beside several at most
TIMED_ANYWAY: Final = 24  # that are judged too since all that they do is timed anyway
SEEN: Final = 5e-4  # a lead that is not printed as 0.0 %


def finalists(search: Search, usual: str = "") -> tuple[Candidate, ...]:
    """The best candidates of a screening, at most three settings of one recipe: what is screened by may misjudge a
    method as a whole, and near settings would fill the list. The `usual` plan, if it was looked at, is one of them
    whatever the screening says of it, and so is one device, unless it is far behind: what messages are to beat."""
    last = tuple(c for c in search.candidates if c.plan.name == usual or _near_alone(c, search))
    kept = list[Candidate]()
    for candidate in (c for c in search.candidates if c not in last):
        name = recipe_of(candidate.plan.name)
        if len(kept) < FINALISTS - len(last) and sum(recipe_of(c.plan.name) == name for c in kept) < OF_ONE_RECIPE:
            kept.append(candidate)
    return tuple(c for c in search.candidates if c in kept or c in last)


def _near_alone(candidate: Candidate, search: Search) -> bool:
    """Whether it is one device, and takes less than FAR times as long as what the screening says is best."""
    least = search.candidates[0].timeline.step_seconds
    return candidate.plan.name == ALONE and candidate.timeline.step_seconds < FAR * least


def timed_anyway(few: Sequence[Candidate], search: Search, graph: Graph) -> tuple[Candidate, ...]:
    """The best of the other candidates, of those that do nothing which is not timed for the finalists: batch sizes on
    one device or on several that are busy at once, and codecs."""
    known = set[Any]().union(*(_timed(one, graph) for one in few))
    others = (c for c in search.candidates if c not in few and known.issuperset(_timed(c, graph)))
    return tuple(islice(others, TIMED_ANYWAY))


def _timed(candidate: Candidate, graph: Graph) -> set[Any]:
    """What of a plan is timed for it."""
    plan, alone = candidate.plan, len(candidate.timeline.memory) == 1
    codecs = {codec for sync in plan.sync for codec in sync.wire.codecs}
    return codecs | {(alone, size) for size in sizes_of(plan, graph)}


def finals(
    usual: Plan, screen: Callable[[Costs | None], tuple[Search, Costs]], measure: Callable[[Sequence[Plan]], Costs], *,
    objective: str, allow: str, tell: Tell,
) -> tuple[Search, Costs]:  # fmt: skip
    """The plans that are best by data sheets, calibrated by what was measured for the `usual` plan, and that plan,
    ranked by measured costs; and these. Data sheets that are off by a factor, or know nothing of what messages cost
    those who compute, would leave out what is best.

    `screen` ranks plans by data sheets, calibrated where costs are given; `measure` gives costs that cover plans, by
    data sheets where nothing can be measured: then those of the cluster rank.
    """
    speed = measure([usual])
    if speed.source != "measured":
        found, costs = screen(None)
        return replace(found, because=speed.because), costs
    found, _ = screen(speed)
    few = finalists(found, usual=usual.name)
    few = (*few, *timed_anyway(few, found, speed.graph))
    costs = measure([candidate.plan for candidate in few])
    return judged(found, few, costs, objective=objective, allow=allow, tell=tell), costs


def judged(
    screened: Search, few: Sequence[Candidate], costs: Costs, *, objective: str, allow: str,
    tell: Tell,
) -> Search:  # fmt: skip
    """The finalists ranked by measured `costs`, the plainest first of those that are alike; the screening itself, and
    why, where nothing could be measured."""
    if costs.source != "measured":
        return replace(screened, because=costs.because)
    calls = [candidate.plan.name for candidate in few]
    whole = [candidate.plan.name for candidate in few if candidate.plan.memory.shard is Shard.NONE]
    calls += filter(None, map(choosing_collective, whole if costs.wiring.schedules else ()))
    final = exhaustive(costs.graph, costs.cluster, costs, calls=calls, objective=objective, allow=allow, tell=tell)
    fields = {name: getattr(screened, name) for name in ("refused", "space", "fitting", "clocked")}
    return plainest(replace(final, **fields), costs.cluster, objective)


def plainest(found: Search, cluster: Cluster, objective: str) -> Search:
    """The ranking with the plainest first of the plans that are alike: those that fit and that the best one leads by
    less than predictions miss by. A plan is plainer that is exact, then that computes nothing twice, then that is a
    recipe as it comes, and so on (`plainness`). `gap` stays that of the plan that
    is predicted best."""
    best, alike = found.candidates[0], ALIKE if objective != "memory" else 1 + ERROR
    least = objective_value(best, cluster, objective)
    near = [c for c in found.candidates if c.fits and objective_value(c, cluster, objective) <= alike * least]
    first = min(near, key=lambda c: (*plainness(c), objective_value(c, cluster, objective)), default=best)
    if first is best:
        return found
    lead = objective_value(first, cluster, objective) / least - 1 if least else 0.0
    said = f"{LEADS[objective].format(lead)}, less than predictions miss by" if lead >= SEEN else "alike"
    bound = bottleneck(first.timeline)
    plainer = f"{best.plan.name} is predicted {said}; {first.plan.name} {_plainer(first, best)}"
    others = (c for c in found.candidates if c is not first)
    return replace(
        found, candidates=(replace(first, explanation=f"{bound}; {plainer}"), *others),
        explanation=f"{first.plan.name} is {bound}\n{plainer}\n{found.explanation}",
    )  # fmt: skip


def _plainer(first: Candidate, best: Candidate) -> str:
    """In which way the first is plainer than the one that is predicted best."""
    mine, other = plainness(first), plainness(best)
    reasons = (
        "is exact", "computes nothing twice", "is the recipe as it comes",
        f"is plainer: {mine[3]:.0f} instructions a step, not {other[3]:.0f}",
        f"keeps less: {show_bytes(mine[4])}, not {show_bytes(other[4])}", "agrees on nothing",
    )  # fmt: skip
    return next(words for words, a, b in zip(reasons, mine, other, strict=True) if a != b)
