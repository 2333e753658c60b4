from __future__ import annotations

from typing import Any

from partita.cluster.cluster import Cluster
from partita.graph.graph import Graph
from partita.plan.memory import Memory, Shard
from partita.plan.plan import Plan
from partita.recipes.zero import zero
from partita.units import Bytes


def zero2(
    graph: Graph, cluster: Cluster, costs: Any = None, *, microbatches: int = 1, bucket_bytes: Bytes = 4 * 2**20,
    shard: Shard = Shard.GRADIENTS, codec: str = "none",
) -> Plan:  # fmt: skip
    """As zero1, and gradients are kept in parts too: a bucket is scattered as soon as backward has made it, with
    microbatches once for each, and two whole ones are there at most (ME-02)."""
    return zero(
        "zero2", graph, cluster, Memory(shard), microbatches=microbatches, bucket_bytes=bucket_bytes, codec=codec
    )
