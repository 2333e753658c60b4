from __future__ import annotations

from typing import Any

from partita.cluster.cluster import Cluster
from partita.graph.graph import Graph
from partita.plan.plan import Plan
from partita.plan.schedule import Order
from partita.recipes.pipeline import pipeline
from partita.units import Bytes


def torchgpipe(
    graph: Graph, cluster: Cluster, costs: Any = None, *, stages: int = 0, data: int = 1, microbatches: int = 4,
    bucket_bytes: Bytes = 4 * 2**20, balance: str = "blocks", codec: str = "none",
) -> Plan:  # fmt: skip
    """GPipe with stages by block partitions of the operators' times, whatever the messages and devices (PP-02; Kim et
    al. 2020). What several stages read goes straight to each."""
    return pipeline(
        graph, cluster, costs, "torchgpipe", Order.FILL_DRAIN, stages=stages, data=data, microbatches=microbatches,
        bucket_bytes=bucket_bytes, balance=balance, codec=codec,
    )  # fmt: skip
