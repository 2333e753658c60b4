from __future__ import annotations

from partita.cluster.cluster import Cluster
from partita.cost.costs import Costs
from partita.graph.graph import Graph
from partita.plan.plan import Plan
from partita.plan.schedule import Order
from partita.recipes.pipeline import pipeline
from partita.units import Bytes


def one_f_one_b(
    graph: Graph, cluster: Cluster, costs: Costs | None = None, *, stages: int = 0, data: int = 1,
    microbatches: int = 4, bucket_bytes: Bytes = 4 * 2**20, balance: str = "time", codec: str = "none",
    collective: str = "backend",
) -> Plan:  # fmt: skip
    """1F1B: one forward and one backward pass in turn, with a flush at the end of each step. As fast as GPipe, but a
    stage holds the activations of only as many microbatches as there are stages from it to the end (PP-11; Narayanan et
    al., SC 2021)."""
    return pipeline(
        graph, cluster, costs, "one_f_one_b", Order.ONE_F_ONE_B, stages=stages, data=data, microbatches=microbatches,
        bucket_bytes=bucket_bytes, balance=balance, codec=codec, collective=collective,
    )  # fmt: skip
