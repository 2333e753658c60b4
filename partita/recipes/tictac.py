from __future__ import annotations

from partita.cluster.cluster import Cluster
from partita.cost.costs import Costs
from partita.graph.graph import Graph
from partita.plan.plan import Plan
from partita.plan.schedule import Schedule
from partita.plan.sync import Sync
from partita.plan.wire import Priority, Wire
from partita.recipes.placing import servers_on, workers_on
from partita.units import Bytes


def tictac(
    graph: Graph, cluster: Cluster, costs: Costs | None = None, *, servers: int = 1, own: bool = True,
    order: Priority = Priority.TIC, bucket_bytes: Bytes = 0, microbatches: int = 1,
) -> Plan:  # fmt: skip
    """TicTac: servers answer in the order in which the forward pass needs the weights (CS-04, CS-05; Hashemi et al.,
    MLSys 2019). `tic` derives the order from the graph alone, `tac` also from the times of operators and messages, by
    data sheets. A tensor is one message, unless `bucket_bytes` lets several travel together."""
    wire = Wire(bucket_bytes=bucket_bytes, first_bucket_bytes=bucket_bytes, order=order)
    sync = Sync(through=servers_on(cluster, servers, own), wire=wire)
    mesh, schedule = workers_on(cluster, servers, own), Schedule(microbatches=microbatches)
    return Plan("tictac", mesh, schedule=schedule, sync=(sync,))
