from __future__ import annotations

from dataclasses import replace

from partita.cluster.cluster import Cluster
from partita.cost.costs import Costs
from partita.errors import PlanError
from partita.graph.graph import Graph
from partita.plan.plan import Plan
from partita.plan.sync import Consistency
from partita.recipes.ps_sync import ps_sync
from partita.units import Bytes


def backup_workers(
    graph: Graph,
    cluster: Cluster,
    costs: Costs | None = None,
    *,
    backup: int = 1,
    servers: int = 1,
    own: bool = True,
    bucket_bytes: Bytes = 2**20,
    microbatches: int = 1,
) -> Plan:
    """Synchronous SGD with backup workers: a step takes the first gradients and drops those of the `backup` slowest
    workers, which then go on with the next version (DP-11; Chen et al. 2016)."""
    base = ps_sync(graph, cluster, servers=servers, own=own, bucket_bytes=bucket_bytes, microbatches=microbatches)
    workers = base.mesh.size
    if backup > max(workers - 1, 1) and workers > 0:  # that servers leave no worker is what `check` says
        raise PlanError(
            f"backup_workers(backup={backup}) leaves out more than {cluster.name} can spare of its {workers} workers; "
            "use a backup below their number, or a larger cluster"
        )
    consistency = Consistency(need=max(workers - backup, 1), late="drop")
    return replace(base, name="backup_workers", sync=(replace(base.sync[0], consistency=consistency),))
