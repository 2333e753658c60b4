"""Synchronous parameter servers on every worker."""

from __future__ import annotations

from partita.cluster.cluster import Cluster
from partita.cost.costs import Costs
from partita.graph.graph import Graph
from partita.plan.mesh import Mesh
from partita.plan.plan import Plan
from partita.plan.schedule import Schedule
from partita.plan.sync import Servers, Sync
from partita.plan.wire import Wire
from partita.units import Bytes


def ps_sharded(
    graph: Graph,
    cluster: Cluster,
    costs: Costs | None = None,
    *,
    bucket_bytes: Bytes = 2**20,
    microbatches: int = 1,
) -> Plan:
    """Every worker also serves an equal share of the keys, so no port carries all gradients (DP-07; Li et al., OSDI
    2014)."""
    sync = Sync(through=Servers(count=cluster.size, own=False), wire=Wire.even(bucket_bytes))
    mesh = Mesh((("data", cluster.size),))
    return Plan("ps_sharded", mesh, schedule=Schedule(microbatches=microbatches), sync=(sync,))
