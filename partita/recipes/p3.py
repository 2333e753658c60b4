from __future__ import annotations

from partita.cluster.cluster import Cluster
from partita.cost.costs import Costs
from partita.graph.graph import Graph
from partita.plan.plan import Plan
from partita.plan.schedule import Schedule
from partita.plan.sync import Sync
from partita.plan.wire import Priority, Wire
from partita.recipes.idle import check_idle_knobs
from partita.recipes.placing import servers_on, workers_on
from partita.recipes.tuned import tuned
from partita.units import Bytes


def p3(
    graph: Graph, cluster: Cluster, costs: Costs | None = None, *, servers: int = 1, own: bool = True,
    slice_bytes: Bytes = 160_000, tune: bool = False, microbatches: int = 1,
) -> Plan:  # fmt: skip
    """Priority-based parameter propagation (CS-03; Jayarajan et al., MLSys 2019): gradients are cut into slices, and
    the slice of the earliest layer is always sent first, by workers and by servers. Servers answer each slice by
    itself; the next forward pass of a layer waits only for that layer. With `tune`, slices are those of the shortest
    predicted step."""
    if tune:
        check_idle_knobs(p3, "beside tune=true, which chooses it; leave tune out", slice_bytes=slice_bytes)
    mesh, through = workers_on(cluster, servers, own), servers_on(cluster, servers, own)

    def planned(size: Bytes, credit: Bytes = 0) -> Plan:
        wire = Wire(bucket_bytes=0, first_bucket_bytes=0, slice_bytes=size, order=Priority.PRIORITY)
        sync = Sync(through=through, wire=wire)
        return Plan("p3", mesh, schedule=Schedule(microbatches=microbatches), sync=(sync,))

    return planned(tuned(planned, graph, cluster, costs, flights=(1,))[0] if tune else slice_bytes)
