from __future__ import annotations

from dataclasses import replace
from typing import Any

from partita.cluster.cluster import Cluster
from partita.graph.graph import Graph
from partita.plan.plan import Correction, Plan, Update
from partita.plan.schedule import Schedule
from partita.recipes.easgd import easgd
from partita.units import Bytes


def eamsgd(
    graph: Graph,
    cluster: Cluster,
    costs: Any = None,
    *,
    period: int = 4,
    rate: float = 0.0,
    servers: int = 0,
    momentum: float = 0.9,
    bucket_bytes: Bytes = 4 * 2**20,
    microbatches: int = 1,
) -> Plan:
    """Elastic averaging of workers that put Nesterov's momentum around the task's rule (DP-19; Zhang, Choromanska &
    LeCun, NIPS 2015). The rule should have none of its own."""
    base = easgd(graph, cluster, period=period, rate=rate, servers=servers, bucket_bytes=bucket_bytes)
    rule = Update(corrections=(Correction("nesterov", (("momentum", momentum),)),))
    return replace(base, name="eamsgd", update=rule, schedule=Schedule(microbatches=microbatches))
