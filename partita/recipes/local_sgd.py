from __future__ import annotations

from partita.cluster.cluster import Cluster
from partita.cost.costs import Costs
from partita.graph.graph import Graph
from partita.plan.mesh import Mesh
from partita.plan.plan import Plan
from partita.plan.schedule import Schedule
from partita.plan.sync import Frequency, Payload, Sync
from partita.plan.wire import Wire
from partita.units import Bytes


def local_sgd(
    graph: Graph,
    cluster: Cluster,
    costs: Costs | None = None,
    *,
    period: int = 4,
    bucket_bytes: Bytes = 4 * 2**20,
    microbatches: int = 1,
) -> Plan:
    """Local SGD: every worker trains alone for `period` steps (0: all of them), then all take the mean of their
    weights (DP-26; SparkNet, Moritz et al. 2015). Each worker keeps its own optimizer state."""
    wire = Wire.even(bucket_bytes)
    sync = Sync(payload=Payload.PARAMETER, frequency=Frequency(period), wire=wire)
    return Plan(
        "local_sgd", Mesh((("data", cluster.size),)), schedule=Schedule(microbatches=microbatches), sync=(sync,)
    )
