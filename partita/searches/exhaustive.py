"""The oracle of all searches: every call that is given, simulated."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any, Final

from partita.cluster.cluster import Cluster
from partita.cost.costs import Costs
from partita.errors import InputError
from partita.graph.graph import Graph
from partita.lowering.lower import last_program
from partita.plan.plan import Plan
from partita.program.program import Program
from partita.recipes.catalogue import RECIPES, call
from partita.searches.candidate import Candidate, candidate_of
from partita.searches.objective import check_objective, refusal
from partita.searches.ranking import ranked
from partita.searches.search import Search
from partita.simulator.simulate import simulate
from partita.telling import Tell, quiet
from partita.units import Bytes

GRID: Final[dict[str, tuple[Any, ...]]] = {
    "bucket_bytes": (2**18, 2**20, 2**22, 25 * 2**20),
    "microbatches": (1, 2),
    "own": (True, False),
    "period": (2, 4, 16),
    "staleness": (1,),
}


def grid(names: Iterable[str], least: Bytes = 0) -> Iterator[str]:
    """Every call of these recipes with settings of the grid as text, with buckets of at least so many bytes."""
    for name in names:
        knobs = {knob: GRID[knob] for knob in RECIPES[name].knobs if knob in GRID}
        if "bucket_bytes" in knobs:
            knobs["bucket_bytes"] = tuple(dict.fromkeys(max(size, least) for size in knobs["bucket_bytes"]))
        for values in product(*knobs.values()):
            chosen = ",".join(f"{k}={v}" for k, v in zip(knobs, values, strict=True))
            yield f"{name}({chosen})" if chosen else name


def exhaustive(
    graph: Graph,
    cluster: Cluster,
    costs: Costs,
    *,
    calls: Iterable[str | Plan],
    objective: str = "time",
    allow: str = "exact",
    tell: Tell = quiet,
) -> Search:
    """Simulate recipe calls or plans, and rank them by `objective`; `allow` bounds the semantic class.

    Raises OptionError for an objective that is not known here, PlanError where nothing applies.
    """
    begun = time.perf_counter()
    found, refused = simulated(graph, cluster, costs, calls=calls, objective=objective, allow=allow, tell=tell)
    search = ranked(graph, costs, found, refused, objective)
    return replace(search, search_seconds=time.perf_counter() - begun)


def simulated(
    graph: Graph, cluster: Cluster, costs: Costs, *, calls: Iterable[str | Plan], objective: str, allow: str,
    tell: Tell,
) -> tuple[list[Candidate], list[tuple[str, str]]]:  # fmt: skip
    """The calls and plans that apply, and why the others do not."""
    check_objective(objective, allow, cluster)
    found, refused = list[Candidate](), list[tuple[str, str]]()
    for text, point in points(graph, cluster, costs, calls=calls, objective=objective, allow=allow):
        if isinstance(point, str):
            refused.append((text, point))
            continue
        plan, program = point
        found.append(candidate_of(plan, program, simulate(program, costs), cluster))
        tell(f"plans simulated: {len(found)}")
    return found, refused


def points(
    graph: Graph, cluster: Cluster, costs: Costs, *, calls: Iterable[str | Plan], objective: str, allow: str
) -> Iterator[tuple[str, tuple[Plan, Program] | str]]:  # fmt: skip
    """(call, its plan with its last program, or why it is none) for the calls and plans."""
    for one in calls:
        text = one.name if isinstance(one, Plan) else one
        try:
            plan = one if isinstance(one, Plan) else call(one, graph, cluster, costs)
            program = last_program(graph, plan, cluster, clocked=True)
        except InputError as error:
            yield text, str(error)
            continue
        yield text, refusal(program.semantics, objective, allow) or (plan, program)
