from __future__ import annotations

from dataclasses import replace

from partita.cluster.cluster import Cluster
from partita.cost.costs import Costs
from partita.graph.graph import Graph
from partita.plan.plan import Plan
from partita.recipes.coded import of_differences
from partita.recipes.ddp import ddp
from partita.units import Bytes


def diana(
    graph: Graph, cluster: Cluster, costs: Costs | None = None, *, codec: str = "qsgd", alpha: float = 0.15,
    bucket_bytes: Bytes = 4 * 2**20, microbatches: int = 1, data: int = 0,
) -> Plan:  # fmt: skip
    """DIANA: d_i = Q(grad f_i(x) - h_i) on each worker, the gradient h + mean d_i on all, then h_i += alpha d_i and
    h += alpha mean d_i (EX-11; Mishchenko, Gorbunov, Takac & Richtarik 2019, algorithm 1; its momentum is the task's).

    The `codec` Q should be right in the mean, as qsgd is. Of a variance of at most omega times the squared norm it
    takes an `alpha` of 1 / (1 + omega) at most: omega is sqrt(512) / 4 for qsgd as it is. With 0 it is Q by itself.
    """
    base = ddp(graph, cluster, bucket_bytes=bucket_bytes, microbatches=microbatches, data=data)
    return of_differences(replace(base, name="diana"), codec, alpha)
