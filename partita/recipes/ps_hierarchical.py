from __future__ import annotations

from dataclasses import replace
from typing import Any

from partita.cluster.cluster import Cluster
from partita.graph.graph import Graph
from partita.plan.plan import Plan
from partita.plan.sync import Servers
from partita.recipes.ps_sync import ps_sync
from partita.units import Bytes


def ps_hierarchical(
    graph: Graph,
    cluster: Cluster,
    costs: Any = None,
    *,
    fan: int = 0,
    bucket_bytes: Bytes = 2**20,
    microbatches: int = 1,
) -> Plan:
    """Synchronous servers in two tiers: `fan` of them sum up what their workers bring, and a root updates (DP-08;
    Gupta, Zhang & Wang, ICDM 2016); 0 is the number by which both tiers together wait least."""
    below = cluster.size - 1
    fan = fan or min(range(1, max(below // 2, 1) + 1), key=lambda f: f + (below - f) / f)
    base = ps_sync(graph, cluster, servers=1 + fan, bucket_bytes=bucket_bytes, microbatches=microbatches)
    sync = replace(base.sync[0], through=Servers(levels=2, fan=fan))
    return replace(base, name="ps_hierarchical", sync=(sync,))
