from __future__ import annotations

from partita.cluster.cluster import Cluster
from partita.cost.costs import Costs
from partita.graph.graph import Graph
from partita.graph.products import products
from partita.plan.mesh import Mesh
from partita.plan.plan import Plan
from partita.plan.schedule import Schedule
from partita.plan.sync import Payload, Sync
from partita.plan.wire import Wire
from partita.units import Bytes


def sfb(
    graph: Graph, cluster: Cluster, costs: Costs | None = None, *, layers: str = "all", bucket_bytes: Bytes = 4 * 2**20,
    microbatches: int = 1,
) -> Plan:  # fmt: skip
    """Sufficient factor broadcasting (FM-02; Xie et al., UAI 2016): of each dense layer that `layers` names (all, or a
    pattern in quotes), every worker sends its activations and errors to all others and multiplies theirs. Other
    gradients are all-reduced."""
    wire = Wire.even(bucket_bytes)
    pattern = "*" if layers == "all" else layers
    named = (Sync(parameters=pattern, payload=Payload.FACTOR, wire=wire),) if products(graph) else ()
    mesh, schedule = Mesh((("data", cluster.size),)), Schedule(microbatches=microbatches)
    return Plan("sfb", mesh, schedule=schedule, sync=(*named, Sync(wire=wire)))
