from __future__ import annotations

from partita.cluster.cluster import Cluster
from partita.cost.costs import Costs
from partita.graph.graph import Graph
from partita.plan.mesh import Mesh
from partita.plan.plan import Plan
from partita.plan.schedule import Schedule
from partita.plan.sync import Frequency, Neighbours, Payload, Sync
from partita.plan.wire import Wire
from partita.units import Bytes


def d_psgd(
    graph: Graph,
    cluster: Cluster,
    costs: Costs | None = None,
    *,
    neighbours: str = "ring",
    period: int = 1,
    bucket_bytes: Bytes = 4 * 2**20,
    microbatches: int = 1,
) -> Plan:
    """Decentralised SGD: at every step each worker averages its weights with those of its neighbours while it computes
    gradients (DP-21; Lian et al., NIPS 2017). `neighbours` is a graph: ring, torus, exponential, complete, or topology
    (the cluster's own); weights are Metropolis'."""
    wire = Wire.even(bucket_bytes)
    sync = Sync(through=Neighbours(neighbours), payload=Payload.PARAMETER, frequency=Frequency(period), wire=wire)
    return Plan("d_psgd", Mesh((("data", cluster.size),)), schedule=Schedule(microbatches=microbatches), sync=(sync,))
