"""How much longer computing is for what each rule computes again."""

from __future__ import annotations

from functools import partial

from partita.cost.costs import Costs
from partita.graph.graph import Graph
from partita.graph.recompute import AGAIN
from partita.lowering.recomputation import step_by_rule
from partita.plan.memory import Recompute
from partita.searches.space import RECOMPUTES
from partita.units import Seconds


def recomputed_shares(graph: Graph, costs: Costs, *, staged: bool) -> list[Seconds]:
    """For each of RECOMPUTES what is computed again, a part of what is computed anyway; the last block of a step
    without stages is not."""
    prices = costs.prices(max(costs.sizes))
    total = sum(prices[o.name] for o in graph.operators) or 1.0
    found = []
    for kind in RECOMPUTES:
        copies = graph.once(("copies", kind, staged), partial(_copies, graph, kind, staged))
        found.append(sum(prices[name] for name in copies) / total)
    return found


def _copies(graph: Graph, kind: Recompute, staged: bool) -> tuple[str, ...]:
    """The operators that a rule has computed twice."""
    step = step_by_rule(graph, kind, last=staged)
    return tuple(o.name.removesuffix(AGAIN) for o in step.operators if o.name.endswith(AGAIN))
