from __future__ import annotations

from partita.cluster.cluster import Cluster
from partita.cost.costs import Costs
from partita.graph.graph import Graph
from partita.plan.plan import Plan
from partita.plan.schedule import Schedule
from partita.plan.sync import AllReduce, Sync
from partita.plan.wire import Priority, Wire
from partita.recipes.idle import check_idle_knobs
from partita.recipes.placing import servers_on, workers_on
from partita.recipes.tuned import tuned
from partita.units import Bytes


def bytescheduler(
    graph: Graph, cluster: Cluster, costs: Costs | None = None, *, servers: int = 0, own: bool = True,
    slice_bytes: Bytes = 4 * 10**6, credit_bytes: Bytes = 16 * 10**6, tune: bool = False, microbatches: int = 1,
) -> Plan:  # fmt: skip
    """Priority scheduling of slices within a credit (CS-06; Peng et al., SOSP 2019): as soon as fewer than
    `credit_bytes` are in flight, the slice of the layer that the forward pass reads first is sent, across the barrier
    between steps. With `servers` each worker orders its own slices; without, slices are all-reduced and rank 0 decides
    the order for all. With `tune`, both sizes are those of the shortest predicted step."""
    if not servers:
        check_idle_knobs(bytescheduler, "without servers; give servers=1 or more", own=own)
    if tune:
        given = {"slice_bytes": slice_bytes, "credit_bytes": credit_bytes}
        check_idle_knobs(bytescheduler, "beside tune=true, which chooses it; leave tune out", **given)
    through = servers_on(cluster, servers, own) if servers else AllReduce()
    mesh, schedule = workers_on(cluster, servers, own), Schedule(microbatches=microbatches)

    def planned(size: Bytes, credit: Bytes) -> Plan:
        wire = Wire("backend", size, size, Priority.CREDIT, slice_bytes=size, credit_bytes=credit)
        return Plan("bytescheduler", mesh, schedule=schedule, sync=(Sync(through=through, wire=wire),))

    sizes = tuned(planned, graph, cluster, costs) if tune else (slice_bytes, credit_bytes)
    return planned(*sizes)
