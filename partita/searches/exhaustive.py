"""The oracle of all searches: every recipe with every setting of its knobs, each simulated."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Final

from partita.cluster.cluster import Cluster
from partita.cost.costs import Costs
from partita.errors import InputError, PlanError
from partita.graph.graph import Graph
from partita.lowering.lower import lower
from partita.plan.plan import Plan
from partita.program.timeline import Timeline
from partita.recipes.catalogue import RECIPES, call
from partita.simulator.simulate import simulate
from partita.units import Seconds

GRID: Final[dict[str, tuple[Any, ...]]] = {
    "bucket_bytes": (2**18, 2**20, 2**22, 25 * 2**20),
    "microbatches": (1, 2),
    "own": (True, False),
    "period": (2, 4, 16),
    "staleness": (1,),
}
CLASSES: Final = {"exact": 0, "delayed": 1, "lossy": 2, "consensus": 2, "racy": 2}


@dataclass(frozen=True)
class Candidate:
    plan: Plan
    timeline: Timeline
    semantics: str
    fits: bool


@dataclass(frozen=True)
class Search:
    """Candidates, best first; `refused` says why points of the grid are none. `gap` is how far the best one's step may
    be above the bound: computing alone, perfectly divided."""

    candidates: tuple[Candidate, ...]
    search_seconds: Seconds
    lower_bound_seconds: Seconds
    gap: float
    explanation: str
    refused: tuple[tuple[str, str], ...] = field(default=())

    @property
    def best(self) -> Plan:
        return self.candidates[0].plan


def grid(names: tuple[str, ...] = tuple(RECIPES)) -> Iterator[str]:
    """Every recipe call of the grid as text."""
    for name in names:
        knobs = {knob: GRID[knob] for knob in RECIPES[name].knobs if knob in GRID}
        for values in product(*knobs.values()):
            chosen = ",".join(f"{k}={v}" for k, v in zip(knobs, values, strict=True))
            yield f"{name}({chosen})" if chosen else name


def exhaustive(
    graph: Graph,
    cluster: Cluster,
    costs: Costs,
    *,
    objective: str = "time",
    allow: str = "exact",
    tell: Callable[[str], None] = lambda s: None,
) -> Search:
    """Simulate the whole grid and rank it by `objective` ('time' a sample, or 'memory' of the fullest rank).

    `allow` bounds the semantic class: exact, delayed, or any. Raises PlanError where nothing of the grid applies.
    """
    begun, found, refused = time.perf_counter(), [], []
    for text in grid():
        try:
            plan = call(text, graph, cluster, costs)
            program = lower(graph, plan, cluster)[-1].program
            if CLASSES[program.semantics] > {"exact": 0, "delayed": 1, "lossy": 2, "any": 3}[allow]:
                refused.append((text, f"its class is {program.semantics} and --allow is {allow}"))
                continue
            timeline = simulate(program, costs)
            found.append(Candidate(plan, timeline, program.semantics, _fits(timeline, cluster)))
        except InputError as error:
            refused.append((text, str(error)))
        tell(f"simulated {len(found)} plans")
    if not found:
        raise PlanError("no plan of the grid applies: " + "; ".join(sorted({why for _, why in refused})))
    ranked = tuple(sorted(found, key=lambda c: (not c.fits, _worth(c, objective))))
    bound = _bound(graph, cluster, costs)
    best = ranked[0].timeline
    gap = best.step_seconds / bound - 1 if bound else 0.0
    return Search(ranked, time.perf_counter() - begun, bound, gap, explain(ranked), tuple(refused))


def _worth(candidate: Candidate, objective: str) -> float:
    timeline = candidate.timeline
    return float(max(timeline.memory)) if objective == "memory" else timeline.step_seconds


def _fits(timeline: Timeline, cluster: Cluster) -> bool:
    return all(d.memory == 0 or used <= d.memory for used, d in zip(timeline.memory, cluster.devices, strict=False))


def _bound(graph: Graph, cluster: Cluster, costs: Costs) -> Seconds:
    """No plan of this grid computes faster than the cheapest known way of a minibatch's work divided by all cores."""
    batch = graph.global_batch or graph.batch
    works = [costs.segment(0, len(graph.operators), size) * batch / size for size in costs.sizes]
    return min(works, default=0.0) / sum(d.cores or 1.0 for d in cluster.devices)


def explain(ranked: tuple[Candidate, ...]) -> str:
    """What binds the best plan, and what the runner-up loses, in words."""
    best, b = ranked[0], ranked[0].timeline.breakdown
    parts = {
        "computing": b.forward + b.backward,
        "waiting for messages": b.exposed_communication,
        "updating": b.optimizer,
    }
    binds = max(parts, key=lambda name: parts[name])
    text = f"{best.plan.name} is bound by {binds} ({parts[binds] / best.timeline.step_seconds:.0%} of its step)"
    other = next((c for c in ranked[1:] if c.plan.name.split("(")[0] != best.plan.name.split("(")[0]), None)
    if other is not None:
        times = other.timeline.step_seconds / best.timeline.step_seconds
        text += f"; {other.plan.name} would take {times:.2f} times as long"
    return text
