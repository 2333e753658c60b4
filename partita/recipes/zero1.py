from __future__ import annotations

from partita.cluster.cluster import Cluster
from partita.cost.costs import Costs
from partita.graph.graph import Graph
from partita.plan.memory import Memory, Shard
from partita.plan.plan import Plan
from partita.recipes.zero import zero
from partita.units import Bytes


def zero1(
    graph: Graph, cluster: Cluster, costs: Costs | None = None, *, microbatches: int = 1,
    bucket_bytes: Bytes = 4 * 2**20, shard: Shard = Shard.OPTIMIZER, codec: str = "none",
) -> Plan:  # fmt: skip
    """ZeRO stage 1: each replica keeps the optimizer state of its own part of every bucket. Gradients are
    reduce-scattered, and new weights are gathered while the next forward pass begins: as many bytes as an all-reduce
    (ME-01)."""
    return zero(
        "zero1", graph, cluster, Memory(shard), microbatches=microbatches, bucket_bytes=bucket_bytes, codec=codec
    )
