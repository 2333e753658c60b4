from __future__ import annotations

from typing import Any

from partita.cluster.cluster import Cluster
from partita.graph.graph import Graph
from partita.plan.plan import Plan
from partita.plan.schedule import Schedule


def single(graph: Graph, cluster: Cluster, costs: Any = None, *, microbatches: int = 1) -> Plan:
    """Minibatch training on one device: what every exact plan equals (DP-01)."""
    return Plan("single", schedule=Schedule(microbatches=microbatches))
