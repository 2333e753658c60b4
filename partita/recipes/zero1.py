from __future__ import annotations

from typing import Any

from partita.cluster.cluster import Cluster
from partita.graph.graph import Graph
from partita.plan.memory import Memory, Shard
from partita.plan.plan import Plan
from partita.recipes.zero import zero
from partita.units import Bytes


def zero1(
    graph: Graph, cluster: Cluster, costs: Any = None, *, microbatches: int = 1, bucket_bytes: Bytes = 4 * 2**20,
    shard: Shard = Shard.OPTIMIZER, codec: str = "none",
) -> Plan:  # fmt: skip
    """Each replica keeps the optimizer's state of its own part of every bucket: sums of gradients are scattered, new
    weights gathered while the next forward pass begins; as many bytes as an all-reduce (ME-01)."""
    return zero(
        "zero1", graph, cluster, Memory(shard), microbatches=microbatches, bucket_bytes=bucket_bytes, codec=codec
    )
