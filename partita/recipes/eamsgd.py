from __future__ import annotations

from dataclasses import replace
from typing import Any

from partita.cluster.cluster import Cluster
from partita.graph.graph import Graph
from partita.plan.plan import Correction, Plan, Update
from partita.recipes.easgd import easgd
from partita.units import Bytes


def eamsgd(
    graph: Graph,
    cluster: Cluster,
    costs: Any = None,
    *,
    period: int = 4,
    rate: float = 0.0,
    momentum: float = 0.9,
    bucket_bytes: Bytes = 4 * 2**20,
    microbatches: int = 1,
) -> Plan:
    """Elastic averaging of workers that put Nesterov's momentum around the task's rule (DP-19; Zhang, Choromanska &
    LeCun, NIPS 2015). The rule should have none of its own."""
    plan = easgd(graph, cluster, period=period, rate=rate, bucket_bytes=bucket_bytes, microbatches=microbatches)
    rule = Update(corrections=(Correction("nesterov", (("momentum", momentum),)),))
    return replace(plan, name="eamsgd", update=rule)
