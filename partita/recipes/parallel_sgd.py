from __future__ import annotations

from dataclasses import replace
from typing import Any

from partita.cluster.cluster import Cluster
from partita.graph.graph import Graph
from partita.plan.plan import Plan
from partita.plan.sync import Frequency
from partita.recipes.local_sgd import local_sgd
from partita.units import Bytes


def parallel_sgd(
    graph: Graph,
    cluster: Cluster,
    costs: Any = None,
    *,
    bucket_bytes: Bytes = 4 * 2**20,
    microbatches: int = 1,
) -> Plan:
    """Every worker trains alone; the mean of their weights is taken once, at the end (DP-24; Zinkevich et al., NIPS
    2010)."""
    plan = local_sgd(graph, cluster, bucket_bytes=bucket_bytes, microbatches=microbatches)
    return replace(plan, name="parallel_sgd", sync=(replace(plan.sync[0], frequency=Frequency(0)),))
