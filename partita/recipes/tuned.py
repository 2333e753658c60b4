"""Slices and credit of ordered messages, by prediction (CS-03, CS-06): a coarse grid, then closer around its best.

ByteScheduler asks the run itself by Bayesian optimisation; a simulation costs so little that a grid can be asked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from partita.cluster.cluster import Cluster
from partita.cost.costs import Costs
from partita.cost.datasheet import datasheet_costs
from partita.graph.graph import Graph
from partita.lowering.lower import last_program
from partita.lowering.samples import sizes_of
from partita.plan.plan import Plan
from partita.simulator.simulate import step_seconds
from partita.units import Bytes, Seconds

PARTS: Final = (1, 4, 16, 64, 256)  # slices of all gradients
FLIGHTS: Final = (1, 2, 4, 16)  # slices in flight
HALVINGS: Final = 2

Planned = Callable[[Bytes, Bytes], Plan]


def tuned(
    planned: Planned, graph: Graph, cluster: Cluster, costs: Costs | None = None, flights: Sequence[int] = FLIGHTS
) -> tuple[Bytes, Bytes]:
    """(bytes of a slice, of the credit, which holds one of `flights` slices at first) for which the plan is predicted
    to be the fastest; by data sheets where no costs are given."""
    total = max(graph.trained_bytes, 1)
    known: dict[Plan, Seconds] = {}

    def seconds(point: tuple[Bytes, Bytes]) -> Seconds:
        plan = planned(*point)
        if plan not in known:
            found = costs or datasheet_costs(graph, cluster, sizes_of(plan, graph))
            known[plan] = step_seconds(last_program(graph, plan, cluster), found)
        return known[plan]

    slices = [-(-total // parts) for parts in PARTS]
    best = min(((size, size * many) for size in slices for many in flights), key=seconds)
    factor = 2.0
    for _ in range(HALVINGS):
        steps = (1 / factor, 1.0, factor)
        near = [(max(round(best[0] * a), 1), max(round(best[1] * a * b), 1)) for a in steps for b in steps]
        best, factor = min([best, *near], key=seconds), factor**0.5
    return best
