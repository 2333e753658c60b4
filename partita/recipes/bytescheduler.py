from __future__ import annotations

from typing import Any

from partita.cluster.cluster import Cluster
from partita.graph.graph import Graph
from partita.plan.mesh import Mesh
from partita.plan.plan import Plan
from partita.plan.schedule import Schedule
from partita.plan.sync import AllReduce, Servers, Sync
from partita.plan.wire import Priority, Wire
from partita.units import Bytes


def bytescheduler(
    graph: Graph, cluster: Cluster, costs: Any = None, *, servers: int = 0, own: bool = True,
    slice_bytes: Bytes = 4 * 10**6, credit_bytes: Bytes = 16 * 10**6, microbatches: int = 1,
) -> Plan:  # fmt: skip
    """Slices by priority within a credit (CS-06; Peng et al., SOSP 2019): the layer that forward reads first goes next
    as soon as fewer than `credit_bytes` are in flight, over the barrier of the step. Through `servers` each worker
    orders its own; without any, slices are all-reduced, and the first rank decides for all."""
    workers = cluster.size - servers if own else cluster.size
    through = Servers(servers, own) if servers else AllReduce()
    wire = Wire(
        bucket_bytes=slice_bytes, first_bucket_bytes=slice_bytes, slice_bytes=slice_bytes, order=Priority.CREDIT,
        credit_bytes=credit_bytes,
    )  # fmt: skip
    sync = Sync(through=through, wire=wire)
    return Plan("bytescheduler", Mesh((("data", workers),)), schedule=Schedule(microbatches=microbatches), sync=(sync,))
