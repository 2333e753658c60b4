from __future__ import annotations

from partita.cluster.cluster import Cluster
from partita.cost.costs import Costs
from partita.graph.graph import Graph
from partita.plan.plan import Plan
from partita.plan.schedule import Order
from partita.recipes.pipeline import pipeline
from partita.units import Bytes


def interleaved(
    graph: Graph, cluster: Cluster, costs: Costs | None = None, *, stages: int = 0, data: int = 1,
    microbatches: int = 4, chunks: int = 2, bucket_bytes: Bytes = 4 * 2**20, balance: str = "time", codec: str = "none",
    collective: str = "backend",
) -> Plan:  # fmt: skip
    """Interleaved 1F1B with `chunks` stages a rank: the pipeline bubble is `chunks` times smaller, and there are
    `chunks` times as many messages (PP-11; Narayanan et al., SC 2021)."""
    return pipeline(
        graph, cluster, costs, "interleaved", Order.INTERLEAVED, stages=stages, data=data, microbatches=microbatches,
        chunks=chunks, bucket_bytes=bucket_bytes, balance=balance, codec=codec, collective=collective,
    )  # fmt: skip
