from __future__ import annotations

from dataclasses import replace

from partita.cluster.cluster import Cluster
from partita.cost.costs import Costs
from partita.graph.graph import Graph
from partita.plan.plan import Plan
from partita.recipes.coded import coded, of_differences
from partita.recipes.ddp import ddp
from partita.units import Bytes


def ef21(
    graph: Graph, cluster: Cluster, costs: Costs | None = None, *, codec: str = "topk", ahead: bool = False,
    bucket_bytes: Bytes = 4 * 2**20, microbatches: int = 1, ramp: int = 0, data: int = 0,
) -> Plan:  # fmt: skip
    """EF21: g_i += C(grad f_i(x) - g_i) on each worker, and x -= rate * mean of g_i on all, who add up what is said: a
    `codec` C that drops numbers converges at a constant rate however unlike the workers' samples are (EX-10; Richtarik,
    Sokolov & Fatkhullin, NeurIPS 2021, algorithm 2).

    With `ahead`, the task's momentum m comes before the codec: EF21-SGDM, whose eta is 1 - m, at a step of the task's
    rate / eta (Fatkhullin, Tyurin & Richtarik, NeurIPS 2023, algorithm 1). The same at servers is
    `ps_sync(codec=topk(difference=1))`.
    """
    base = ddp(graph, cluster, bucket_bytes=bucket_bytes, microbatches=microbatches, data=data)
    return coded(of_differences(replace(base, name="ef21"), codec, 1.0), graph, ramp, ahead=ahead)
