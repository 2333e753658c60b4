from __future__ import annotations

from dataclasses import replace

from partita.cluster.cluster import Cluster
from partita.cost.costs import Costs
from partita.graph.graph import Graph
from partita.plan.plan import Correction, Plan, Update
from partita.plan.schedule import Schedule
from partita.recipes.easgd import easgd
from partita.units import Bytes


def eamsgd(
    graph: Graph,
    cluster: Cluster,
    costs: Costs | None = None,
    *,
    period: int = 4,
    rate: float = 0.0,
    servers: int = 0,
    momentum: float = 0.9,
    bucket_bytes: Bytes = 4 * 2**20,
    microbatches: int = 1,
) -> Plan:
    """Elastic averaging SGD with Nesterov momentum around the task's rule, which should have no momentum of its own
    (DP-19; Zhang, Choromanska & LeCun, NIPS 2015)."""
    base = easgd(graph, cluster, period=period, rate=rate, servers=servers, bucket_bytes=bucket_bytes)
    rule = Update(corrections=(Correction("nesterov", (("momentum", momentum),)),))
    return replace(base, name="eamsgd", update=rule, schedule=Schedule(microbatches=microbatches))
