from __future__ import annotations

from typing import Any

from partita.cluster.cluster import Cluster
from partita.graph.graph import Graph
from partita.plan.memory import Memory, Shard
from partita.plan.plan import Plan
from partita.recipes.zero import zero
from partita.units import Bytes


def zero3(
    graph: Graph, cluster: Cluster, costs: Any = None, *, microbatches: int = 1, bucket_bytes: Bytes = 4 * 2**20,
    ahead: int = 1, keep: int = 0, shard: Shard = Shard.PARAMETERS, codec: str = "none",
) -> Plan:  # fmt: skip
    """As zero2, and weights are kept in parts too: gathered for each pass `ahead` buckets before their turn and given
    back after it, half as many bytes more (ME-03). Those of the last layers stay for backward where fewer than `keep`
    buckets are read in between."""
    return zero(
        "zero3",
        graph,
        cluster,
        Memory(shard, ahead=ahead, keep=keep),
        microbatches=microbatches,
        bucket_bytes=bucket_bytes,
        codec=codec,
    )
