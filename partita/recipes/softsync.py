from __future__ import annotations

from dataclasses import replace

from partita.cluster.cluster import Cluster
from partita.cost.costs import Costs
from partita.errors import PlanError
from partita.graph.graph import Graph
from partita.plan.plan import Plan
from partita.plan.sync import Consistency
from partita.recipes.ps_async import ps_async
from partita.units import Bytes


def softsync(
    graph: Graph,
    cluster: Cluster,
    costs: Costs | None = None,
    *,
    n: int = 2,
    servers: int = 1,
    own: bool = True,
    bucket_bytes: Bytes = 2**20,
    microbatches: int = 1,
    codec: str = "none",
) -> Plan:
    """n-softsync: of L workers, every L // n gradients that arrive make a step; fewer at the end make none. Each counts
    by its share of the minibatch: the rate falls as staleness, about n, rises (DP-16; Gupta et al., ICDM 2016)."""
    base = ps_async(
        graph, cluster, servers=servers, own=own, bucket_bytes=bucket_bytes, microbatches=microbatches, codec=codec
    )
    if not 1 <= n <= max(base.mesh.size, 2):
        raise PlanError(
            f"softsync(n={n}) makes {n} steps of a gradient of each of the {base.mesh.size} workers on {cluster.name}; "
            "use n from 1 to the number of workers"
        )
    need = max(base.mesh.size // n, 1)
    return replace(
        base, name="softsync", sync=(replace(base.sync[0], consistency=Consistency(-1, need=need, late="keep")),)
    )
