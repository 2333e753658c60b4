from __future__ import annotations

from partita.cluster.cluster import Cluster
from partita.cost.costs import Costs
from partita.graph.graph import Graph
from partita.plan.memory import Memory, Shard
from partita.plan.plan import Plan
from partita.recipes.zero import zero
from partita.units import Bytes


def zero2(
    graph: Graph, cluster: Cluster, costs: Costs | None = None, *, microbatches: int = 1,
    bucket_bytes: Bytes = 4 * 2**20, shard: Shard = Shard.GRADIENTS, codec: str = "none",
) -> Plan:  # fmt: skip
    """ZeRO stage 2: as zero1, and gradients are divided too. A bucket is reduce-scattered as soon as the backward pass
    has made it, once for each microbatch; at most two whole buckets exist at a time (ME-02)."""
    return zero(
        "zero2", graph, cluster, Memory(shard), microbatches=microbatches, bucket_bytes=bucket_bytes, codec=codec
    )
