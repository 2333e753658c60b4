from __future__ import annotations

from typing import Any

from partita.cluster.cluster import Cluster
from partita.graph.graph import Graph
from partita.plan.mesh import Mesh
from partita.plan.plan import Plan
from partita.plan.schedule import Schedule
from partita.plan.sync import Servers, Sync
from partita.plan.wire import Wire
from partita.units import Bytes


def ps_sync(
    graph: Graph,
    cluster: Cluster,
    costs: Any = None,
    *,
    servers: int = 1,
    own: bool = True,
    bucket_bytes: Bytes = 2**20,
    microbatches: int = 1,
) -> Plan:
    """Synchronous parameter servers, on devices of their own or the first workers' (DP-03; Li et al., OSDI 2014).

    Keys are sliced, so that weights go out while gradients still come in.
    """
    workers = cluster.size - servers if own else cluster.size
    wire = Wire(bucket_bytes=bucket_bytes, first_bucket_bytes=bucket_bytes, slice_bytes=bucket_bytes)
    sync = Sync(through=Servers(servers, own), wire=wire)
    return Plan("ps_sync", Mesh((("data", workers),)), schedule=Schedule(microbatches=microbatches), sync=(sync,))
