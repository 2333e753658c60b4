from __future__ import annotations

from typing import Any

from partita.cluster.cluster import Cluster
from partita.graph.graph import Graph
from partita.plan.mesh import Mesh
from partita.plan.plan import Plan
from partita.plan.schedule import Schedule
from partita.plan.sync import Frequency, Gossip, Payload, Sync
from partita.plan.wire import Wire
from partita.units import Bytes


def gossip(
    graph: Graph,
    cluster: Cluster,
    costs: Any = None,
    *,
    direction: str = "pull",
    partners: int = 1,
    period: int = 1,
    draws: int = 8,
    seed: int = 0,
    bucket_bytes: Bytes = 4 * 2**20,
    microbatches: int = 1,
) -> Plan:
    """Every `period` steps each worker takes the mean with random partners' weights (pull), gives them parts of its own
    (push, with push-sum weights), or all meet two by two (pair) (DP-23; Jin et al. 2016)."""
    wire = Wire(bucket_bytes=bucket_bytes, first_bucket_bytes=bucket_bytes, slice_bytes=bucket_bytes)
    sync = Sync(
        through=Gossip(direction, partners, draws, seed),
        payload=Payload.PARAMETER,
        frequency=Frequency(period),
        wire=wire,
    )
    return Plan("gossip", Mesh((("data", cluster.size),)), schedule=Schedule(microbatches=microbatches), sync=(sync,))
