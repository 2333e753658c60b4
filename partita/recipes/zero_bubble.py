from __future__ import annotations

from partita.cluster.cluster import Cluster
from partita.cost.costs import Costs
from partita.graph.graph import Graph
from partita.plan.plan import Plan
from partita.plan.schedule import Order
from partita.recipes.pipeline import pipeline
from partita.units import Bytes


def zero_bubble(
    graph: Graph, cluster: Cluster, costs: Costs | None = None, *, stages: int = 0, data: int = 1,
    microbatches: int = 4, bucket_bytes: Bytes = 4 * 2**20, balance: str = "time", codec: str = "none",
    collective: str = "backend",
) -> Plan:  # fmt: skip
    """ZB-H1: 1F1B in which computing the gradients of weights fills the bubble (EX-07; Qi et al., ICLR 2024)."""
    return pipeline(
        graph, cluster, costs, "zero_bubble", Order.ZERO_BUBBLE, stages=stages, data=data, microbatches=microbatches,
        bucket_bytes=bucket_bytes, balance=balance, codec=codec, collective=collective,
    )  # fmt: skip
