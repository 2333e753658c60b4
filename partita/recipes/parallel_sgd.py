from __future__ import annotations

from dataclasses import replace

from partita.cluster.cluster import Cluster
from partita.cost.costs import Costs
from partita.graph.graph import Graph
from partita.plan.plan import Plan
from partita.plan.sync import Frequency
from partita.recipes.local_sgd import local_sgd
from partita.units import Bytes


def parallel_sgd(
    graph: Graph,
    cluster: Cluster,
    costs: Costs | None = None,
    *,
    bucket_bytes: Bytes = 4 * 2**20,
    microbatches: int = 1,
) -> Plan:
    """Parallel SGD: every worker trains alone, and the weights are averaged once, at the end (DP-24; Zinkevich et al.,
    NIPS 2010)."""
    plan = local_sgd(graph, cluster, bucket_bytes=bucket_bytes, microbatches=microbatches)
    return replace(plan, name="parallel_sgd", sync=(replace(plan.sync[0], frequency=Frequency(0)),))
