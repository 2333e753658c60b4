from __future__ import annotations

from dataclasses import replace

from partita.cluster.cluster import Cluster
from partita.cost.costs import Costs
from partita.graph.graph import Graph
from partita.plan.plan import Correction, Plan, Update
from partita.recipes.ps_async import ps_async
from partita.units import Bytes


def dc_asgd(
    graph: Graph,
    cluster: Cluster,
    costs: Costs | None = None,
    *,
    strength: float = 0.04,
    decay: float = 0.0,
    servers: int = 1,
    own: bool = True,
    bucket_bytes: Bytes = 2**20,
    microbatches: int = 1,
) -> Plan:
    """Delay-compensated asynchronous SGD: the server applies g + lambda g g (w - w_read), where lambda is `strength`;
    with a `decay`, lambda is divided by the root of the running mean of g g (DP-18; Zheng et al., ICML 2017)."""
    base = ps_async(graph, cluster, servers=servers, own=own, bucket_bytes=bucket_bytes, microbatches=microbatches)
    delay = Correction("delay", (("strength", strength), ("decay", decay)))
    return replace(base, name="dc_asgd", update=Update(corrections=(delay,)))
