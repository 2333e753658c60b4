from __future__ import annotations

from partita.cluster.cluster import Cluster
from partita.cost.costs import Costs
from partita.graph.graph import Graph
from partita.plan.plan import Plan
from partita.plan.schedule import Order
from partita.recipes.pipeline import pipeline
from partita.units import Bytes


def torchgpipe(
    graph: Graph, cluster: Cluster, costs: Costs | None = None, *, stages: int = 0, data: int = 1,
    microbatches: int = 4, bucket_bytes: Bytes = 4 * 2**20, balance: str = "blocks", codec: str = "none",
    collective: str = "backend",
) -> Plan:  # fmt: skip
    """GPipe with torchgpipe's balance: stages by block partition of operators' times, which ignores messages and
    differences between devices (PP-02; Kim et al. 2020). A value that several stages read is sent directly to each."""
    return pipeline(
        graph, cluster, costs, "torchgpipe", Order.FILL_DRAIN, stages=stages, data=data, microbatches=microbatches,
        bucket_bytes=bucket_bytes, balance=balance, codec=codec, collective=collective,
    )  # fmt: skip
