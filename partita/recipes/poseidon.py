from __future__ import annotations

from partita.cluster.cluster import Cluster
from partita.cost.costs import Costs
from partita.graph.graph import Graph
from partita.graph.products import products, samples_of
from partita.plan.mesh import Mesh
from partita.plan.plan import Plan
from partita.plan.schedule import Schedule
from partita.plan.sync import Payload, Servers, Sync
from partita.plan.wire import Wire
from partita.units import Bytes
from partita.wire.factors import broadcast_pays


def poseidon(
    graph: Graph, cluster: Cluster, costs: Costs | None = None, *, slice_bytes: Bytes = 2 * 2**20, microbatches: int = 1
) -> Plan:
    """Hybrid communication (FM-03; Zhang et al., USENIX ATC 2017): each dense layer goes the way that takes fewer
    bytes, its factors to all workers, or its gradient through servers, one on each worker's device. Everything else
    goes through the servers, in keys of `slice_bytes`, each sent as soon as the backward pass has made it."""
    p, batch = cluster.size, graph.minibatch
    wire = Wire(bucket_bytes=0, first_bucket_bytes=0, slice_bytes=slice_bytes)
    named = tuple(
        Sync(parameters=name, payload=Payload.FACTOR, wire=wire)
        for name, one in products(graph).items()
        if broadcast_pays(one.rows, one.columns, samples_of(graph, one, -(-batch // p)), p, p)
    )
    mesh, schedule = Mesh((("data", p),)), Schedule(microbatches=microbatches)
    return Plan("poseidon", mesh, schedule=schedule, sync=(*named, Sync(through=Servers(p, False), wire=wire)))
