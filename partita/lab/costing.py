"""Costs of plans on a cluster that this machine can stand for, measured by workers of a lab of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from partita.cluster.cluster import Cluster
from partita.cost.costs import Costs
from partita.graph.graph import Graph
from partita.lab.rehearsal import Rehearsal
from partita.plan.plan import Plan


def measured_costs(
    task: str, graph: Graph, cluster: Cluster, plans: Sequence[Plan], *, insist: bool, tell: Callable[[str], None]
) -> Costs | str:
    """Costs by micro-benchmarks, or the sentence that says why the lab's times would mean nothing, unless `insist`."""
    with Rehearsal(task, graph, cluster, tell=tell) as crew:
        if crew.lame and not insist:
            return crew.lame
        return crew.probe(plans)
