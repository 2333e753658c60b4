from __future__ import annotations

from dataclasses import replace

from partita.cluster.cluster import Cluster
from partita.cost.costs import Costs
from partita.graph.graph import Graph
from partita.plan.plan import Plan
from partita.plan.sync import Consistency, Payload
from partita.recipes.ps_async import ps_async
from partita.units import Bytes


def ssp(
    graph: Graph,
    cluster: Cluster,
    costs: Costs | None = None,
    *,
    staleness: int = 3,
    servers: int = 1,
    own: bool = True,
    bucket_bytes: Bytes = 2**20,
    microbatches: int = 1,
    codec: str = "none",
) -> Plan:
    """Stale synchronous parallel: workers push the change that their own optimizer made, and a read at clock c sees
    every change of clocks before c - staleness (DP-14; Ho et al., NIPS 2013)."""
    base = ps_async(
        graph, cluster, servers=servers, own=own, bucket_bytes=bucket_bytes, microbatches=microbatches, codec=codec
    )
    sync = replace(base.sync[0], payload=Payload.DELTA, consistency=Consistency(staleness=staleness))
    return replace(base, name="ssp", sync=(sync,))
