from __future__ import annotations

from dataclasses import replace

from partita.cluster.cluster import Cluster
from partita.cost.costs import Costs
from partita.graph.graph import Graph
from partita.plan.plan import Plan
from partita.plan.sync import SharedMemory
from partita.recipes.hogwild import hogwild
from partita.units import Bytes


def buckwild(
    graph: Graph,
    cluster: Cluster,
    costs: Costs | None = None,
    *,
    bucket_bytes: Bytes = 4 * 2**20,
    microbatches: int = 1,
) -> Plan:
    """`hogwild` on 16-bit weights (bfloat16); each write is rounded stochastically, so that it is unbiased (DP-12; De
    Sa et al., NIPS 2015)."""
    base = hogwild(graph, cluster, bucket_bytes=bucket_bytes, microbatches=microbatches)
    sync = replace(base.sync[0], through=SharedMemory("bfloat16"))
    return replace(base, name="buckwild", sync=(sync,))
