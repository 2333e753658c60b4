from __future__ import annotations

from partita.cluster.cluster import Cluster
from partita.cost.costs import Costs
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
    costs: Costs | None = None,
    *,
    direction: str = "pull",
    partners: int = 1,
    period: int = 1,
    draws: int = 8,
    seed: int = 0,
    bucket_bytes: Bytes = 4 * 2**20,
    microbatches: int = 1,
) -> Plan:
    """Gossip SGD: every `period` steps each worker averages its weights with random partners (DP-23; Jin et al. 2016).
    `direction`: it takes theirs (pull), sends parts of its own (push, by push-sum), or all workers average in pairs
    (pair)."""
    wire = Wire.even(bucket_bytes)
    sync = Sync(
        through=Gossip(direction, partners, draws, seed),
        payload=Payload.PARAMETER,
        frequency=Frequency(period),
        wire=wire,
    )
    return Plan("gossip", Mesh((("data", cluster.size),)), schedule=Schedule(microbatches=microbatches), sync=(sync,))
