from __future__ import annotations

from partita.cluster.cluster import Cluster
from partita.cost.costs import Costs
from partita.graph.graph import Graph
from partita.plan.mesh import Mesh
from partita.plan.plan import Plan
from partita.plan.schedule import Schedule
from partita.plan.sync import Sync
from partita.plan.wire import Priority, Wire
from partita.recipes.coded import coded
from partita.units import Bytes
from partita.wire.codec import read_codecs


def ddp(
    graph: Graph, cluster: Cluster, costs: Costs | None = None, *, bucket_bytes: Bytes = 4 * 2**20,
    first_bucket_bytes: Bytes = 2**20, order: Priority = Priority.PRIORITY, microbatches: int = 1,
    collective: str = "backend", codec: str = "none", ramp: int = 0, data: int = 0,
) -> Plan:  # fmt: skip
    """Synchronous data parallelism on `data` devices (0: all): buckets of gradients are all-reduced while the backward
    pass goes on (DP-02, DP-34; Li et al., VLDB 2020).

    Buckets are smaller than PyTorch's 25 MB, so that they leave sooner; those of the first layers overtake others, and
    each weight is updated when the next forward pass needs it. With `ramp`, a sparse codec begins denser, in phases of
    so many steps (SP-03).
    """
    wire = Wire(
        bucket_bytes=bucket_bytes, first_bucket_bytes=first_bucket_bytes, slice_bytes=bucket_bytes, order=order,
        collective=collective, codecs=read_codecs(codec),
    )  # fmt: skip
    mesh, schedule = Mesh((("data", data or cluster.size),)), Schedule(microbatches=microbatches)
    return coded(Plan("ddp", mesh, schedule=schedule, sync=(Sync(wire=wire),)), graph, ramp)
