from __future__ import annotations

from partita.cluster.cluster import Cluster
from partita.cost.costs import Costs
from partita.graph.graph import Graph
from partita.plan.mesh import Mesh
from partita.plan.plan import Plan
from partita.plan.schedule import Schedule
from partita.plan.sync import Consistency, SharedMemory, Sync
from partita.plan.wire import Wire
from partita.units import Bytes


def hogwild(
    graph: Graph,
    cluster: Cluster,
    costs: Costs | None = None,
    *,
    bucket_bytes: Bytes = 4 * 2**20,
    microbatches: int = 1,
) -> Plan:
    """HOGWILD!: the workers of one machine update the same weights without locks, each at its own pace (DP-12; Niu et
    al., NIPS 2011)."""
    wire = Wire.even(bucket_bytes)
    sync = Sync(through=SharedMemory(), consistency=Consistency(staleness=-1), wire=wire)
    return Plan("hogwild", Mesh((("data", cluster.size),)), schedule=Schedule(microbatches=microbatches), sync=(sync,))
