from __future__ import annotations

from typing import Any

from partita.cluster.cluster import Cluster
from partita.graph.graph import Graph
from partita.plan.plan import Plan
from partita.plan.schedule import Order
from partita.recipes.pipeline import pipeline
from partita.units import Bytes


def zero_bubble(
    graph: Graph, cluster: Cluster, costs: Any = None, *, stages: int = 0, data: int = 1, microbatches: int = 4,
    bucket_bytes: Bytes = 4 * 2**20, balance: str = "time", codec: str = "none",
) -> Plan:  # fmt: skip
    """ZB-H1: 1F1B whose gradients of weights fill the bubble (EX-07; Qi et al., ICLR 2024)."""
    return pipeline(
        graph, cluster, costs, "zero_bubble", Order.ZERO_BUBBLE, stages=stages, data=data, microbatches=microbatches,
        bucket_bytes=bucket_bytes, balance=balance, codec=codec,
    )  # fmt: skip
