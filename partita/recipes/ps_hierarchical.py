from __future__ import annotations

from dataclasses import replace

from partita.cluster.cluster import Cluster
from partita.cost.costs import Costs
from partita.graph.graph import Graph
from partita.plan.plan import Plan
from partita.plan.sync import Servers
from partita.recipes.ps_sync import ps_sync
from partita.units import Bytes


def ps_hierarchical(
    graph: Graph,
    cluster: Cluster,
    costs: Costs | None = None,
    *,
    fan: int = 0,
    bucket_bytes: Bytes = 2**20,
    microbatches: int = 1,
) -> Plan:
    """Synchronous servers in two tiers: `fan` servers sum the gradients of their workers, and a root updates (DP-08;
    Gupta, Zhang & Wang, ICDM 2016). `fan` 0: the number with the least predicted waiting in both tiers."""
    below = cluster.size - 1
    fan = fan or min(range(1, max(below // 2, 1) + 1), key=lambda f: f + (below - f) / f)
    base = ps_sync(graph, cluster, servers=1 + fan, bucket_bytes=bucket_bytes, microbatches=microbatches)
    sync = replace(base.sync[0], through=Servers(levels=2, fan=fan))
    return replace(base, name="ps_hierarchical", sync=(sync,))
