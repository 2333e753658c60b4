from __future__ import annotations

from partita.cluster.cluster import Cluster
from partita.cost.costs import Costs
from partita.graph.graph import Graph
from partita.graph.products import products, samples_of
from partita.plan.plan import Plan
from partita.plan.schedule import Schedule
from partita.plan.sync import Payload, Sync
from partita.plan.wire import Wire
from partita.recipes.placing import servers_on, workers_on
from partita.units import Bytes
from partita.wire.factors import push_pays


def adam(
    graph: Graph, cluster: Cluster, costs: Costs | None = None, *, servers: int = 1, own: bool = True,
    bucket_bytes: Bytes = 2**20, microbatches: int = 1,
) -> Plan:  # fmt: skip
    """Project Adam's servers, which multiply factors (FM-01; Chilimbi et al., OSDI 2014): for a dense layer of M x N
    weights and K samples, workers send K rows of activations and errors in place of the gradient where that is less, K
    < M N / (M + N), and get weights back."""
    mesh, through = workers_on(cluster, servers, own), servers_on(cluster, servers, own)
    share = -(-graph.minibatch // max(mesh.size, 1))
    wire = Wire.even(bucket_bytes)
    named = tuple(
        Sync(parameters=name, through=through, payload=Payload.FACTOR, wire=wire)
        for name, one in products(graph).items() if push_pays(one.rows, one.columns, samples_of(graph, one, share))
    )  # fmt: skip
    schedule = Schedule(microbatches=microbatches)
    return Plan("adam", mesh, schedule=schedule, sync=(*named, Sync(through=through, wire=wire)))
