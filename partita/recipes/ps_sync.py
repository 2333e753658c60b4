from __future__ import annotations

from partita.cluster.cluster import Cluster
from partita.cost.costs import Costs
from partita.graph.graph import Graph
from partita.plan.plan import Plan
from partita.plan.schedule import Schedule
from partita.plan.sync import Sync
from partita.plan.wire import Priority, Wire
from partita.recipes.coded import coded
from partita.recipes.placing import servers_on, workers_on
from partita.units import Bytes
from partita.wire.codec import read_codecs


def ps_sync(
    graph: Graph,
    cluster: Cluster,
    costs: Costs | None = None,
    *,
    servers: int = 1,
    own: bool = True,
    bucket_bytes: Bytes = 2**20,
    order: Priority = Priority.FIFO,
    microbatches: int = 1,
    codec: str = "none",
    ramp: int = 0,
) -> Plan:
    """Synchronous parameter servers, on devices of their own or on the first workers' (DP-03; Li et al., OSDI 2014).

    Keys are sliced, so that weights go out while gradients still come in. A `codec` encodes the workers' gradients;
    with `where=server` also the answer, which is then the sum, and workers update by themselves (QU-05, QU-06).
    """
    wire = Wire.even(bucket_bytes, order, read_codecs(codec, hops=False))
    sync = Sync(through=servers_on(cluster, servers, own), wire=wire)
    mesh, schedule = workers_on(cluster, servers, own), Schedule(microbatches=microbatches)
    return coded(Plan("ps_sync", mesh, schedule=schedule, sync=(sync,)), graph, ramp)
