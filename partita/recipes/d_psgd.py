from __future__ import annotations

from typing import Any

from partita.cluster.cluster import Cluster
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
    costs: Any = None,
    *,
    neighbours: str = "ring",
    period: int = 1,
    bucket_bytes: Bytes = 4 * 2**20,
    microbatches: int = 1,
) -> Plan:
    """Every step a worker mixes the weights of its neighbours into its own, beside its pass (DP-21; Lian et al., NIPS
    2017), by the Metropolis weights of a graph: ring, torus, exponential, complete, or topology, the cluster's."""
    wire = Wire(bucket_bytes=bucket_bytes, first_bucket_bytes=bucket_bytes, slice_bytes=bucket_bytes)
    sync = Sync(through=Neighbours(neighbours), payload=Payload.PARAMETER, frequency=Frequency(period), wire=wire)
    return Plan("d_psgd", Mesh((("data", cluster.size),)), schedule=Schedule(microbatches=microbatches), sync=(sync,))
