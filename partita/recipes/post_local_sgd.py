from __future__ import annotations

from dataclasses import replace

from partita.cluster.cluster import Cluster
from partita.cost.costs import Costs
from partita.graph.graph import Graph
from partita.plan.plan import Phase, Plan
from partita.plan.sync import Sync
from partita.recipes.local_sgd import local_sgd
from partita.units import Bytes


def post_local_sgd(
    graph: Graph,
    cluster: Cluster,
    costs: Costs | None = None,
    *,
    switch: int = 100,
    period: int = 4,
    bucket_bytes: Bytes = 4 * 2**20,
    microbatches: int = 1,
) -> Plan:
    """Post-local SGD: `switch` synchronous steps, then local SGD with an average of the weights every `period` steps
    (DP-26; Lin et al., ICLR 2020)."""
    plan = local_sgd(graph, cluster, period=period, bucket_bytes=bucket_bytes, microbatches=microbatches)
    first = replace(plan, name="ddp", sync=(Sync(wire=plan.sync[0].wire),))
    return replace(plan, name="post_local_sgd", before=(Phase(switch, first),))
