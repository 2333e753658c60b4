from __future__ import annotations

from dataclasses import replace

from partita.cluster.cluster import Cluster
from partita.cost.costs import Costs
from partita.graph.graph import Graph
from partita.plan.plan import Plan
from partita.plan.sync import Consistency
from partita.recipes.ps_sync import ps_sync
from partita.units import Bytes


def ps_async(
    graph: Graph,
    cluster: Cluster,
    costs: Costs | None = None,
    *,
    servers: int = 1,
    own: bool = True,
    bucket_bytes: Bytes = 2**20,
    microbatches: int = 1,
    codec: str = "none",
) -> Plan:
    """Asynchronous SGD: servers apply each worker's gradient as it comes, weighted by the worker's share of the
    minibatch, and answer at once (DP-10; Langford et al., NeurIPS 2009). Keys are divided over the servers by bytes;
    with a codec workers push what it says, such as what has changed significantly (DP-05, DP-07)."""
    base = ps_sync(
        graph, cluster, servers=servers, own=own, bucket_bytes=bucket_bytes, microbatches=microbatches, codec=codec
    )
    return replace(base, name="ps_async", sync=(replace(base.sync[0], consistency=Consistency(staleness=-1)),))
