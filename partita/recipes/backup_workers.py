from __future__ import annotations

from dataclasses import replace
from typing import Any

from partita.cluster.cluster import Cluster
from partita.graph.graph import Graph
from partita.plan.plan import Plan
from partita.plan.sync import Consistency
from partita.recipes.ps_sync import ps_sync
from partita.units import Bytes


def backup_workers(
    graph: Graph,
    cluster: Cluster,
    costs: Any = None,
    *,
    backup: int = 1,
    servers: int = 1,
    own: bool = True,
    bucket_bytes: Bytes = 2**20,
    microbatches: int = 1,
) -> Plan:
    """Synchronous SGD with backup workers: a step takes the gradients that come first and drops those of the `backup`
    slowest, who then go on with the next version (DP-11; Chen et al. 2016)."""
    base = ps_sync(graph, cluster, servers=servers, own=own, bucket_bytes=bucket_bytes, microbatches=microbatches)
    consistency = Consistency(need=max(base.mesh.size - backup, 1), late="drop")
    return replace(base, name="backup_workers", sync=(replace(base.sync[0], consistency=consistency),))
