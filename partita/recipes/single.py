from __future__ import annotations

from partita.cluster.cluster import Cluster
from partita.cost.costs import Costs
from partita.graph.graph import Graph
from partita.plan.plan import Plan
from partita.plan.schedule import Schedule


def single(graph: Graph, cluster: Cluster, costs: Costs | None = None, *, microbatches: int = 1) -> Plan:
    """Minibatch training on one device: the reference for every exact plan (DP-01)."""
    return Plan("single", schedule=Schedule(microbatches=microbatches))
