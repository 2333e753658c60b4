from __future__ import annotations

from partita.cluster.cluster import Cluster
from partita.cost.costs import Costs
from partita.graph.graph import Graph
from partita.plan.memory import Memory, Shard
from partita.plan.plan import Plan
from partita.recipes.zero import zero
from partita.units import Bytes


def zero3(
    graph: Graph, cluster: Cluster, costs: Costs | None = None, *, microbatches: int = 1,
    bucket_bytes: Bytes = 4 * 2**20, ahead: int = 1, keep: int = 0, shard: Shard = Shard.PARAMETERS,
    codec: str = "none",
) -> Plan:  # fmt: skip
    """ZeRO stage 3: as zero2, and weights are divided too. They are gathered for each pass, `ahead` buckets before they
    are needed, and released after it: 1.5 times the bytes (ME-03). Weights of the last layers stay from forward to
    backward where fewer than `keep` buckets are read in between."""
    return zero(
        "zero3",
        graph,
        cluster,
        Memory(shard, ahead=ahead, keep=keep),
        microbatches=microbatches,
        bucket_bytes=bucket_bytes,
        codec=codec,
    )
