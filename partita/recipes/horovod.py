from __future__ import annotations

from partita.cluster.cluster import Cluster
from partita.cost.costs import Costs
from partita.graph.graph import Graph
from partita.plan.mesh import Mesh
from partita.plan.plan import Plan
from partita.plan.schedule import Schedule
from partita.plan.sync import Sync
from partita.plan.wire import Priority, Wire
from partita.units import Bytes


def horovod(
    graph: Graph, cluster: Cluster, costs: Costs | None = None, *, bucket_bytes: Bytes = 64 * 2**20,
    order: Priority = Priority.FIFO, collective: str = "ring", microbatches: int = 1,
) -> Plan:  # fmt: skip
    """Horovod: ranks agree on readiness before they sum (DP-33; Sergeev & Del Balso 2018). Every rank tells rank 0
    which fusion buffers of `bucket_bytes` it has filled; what all have filled is all-reduced, one after the other, in
    the order that rank 0 decides."""
    wire = Wire(
        collective=collective, bucket_bytes=bucket_bytes, first_bucket_bytes=bucket_bytes, order=order, negotiate=True
    )
    mesh, schedule = Mesh((("data", cluster.size),)), Schedule(microbatches=microbatches)
    return Plan("horovod", mesh, schedule=schedule, sync=(Sync(wire=wire),))
