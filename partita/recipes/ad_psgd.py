from __future__ import annotations

from dataclasses import replace

from partita.cluster.cluster import Cluster
from partita.cost.costs import Costs
from partita.graph.graph import Graph
from partita.plan.plan import Plan
from partita.plan.sync import Consistency
from partita.recipes.gossip import gossip
from partita.units import Bytes


def ad_psgd(
    graph: Graph,
    cluster: Cluster,
    costs: Costs | None = None,
    *,
    period: int = 1,
    draws: int = 8,
    seed: int = 0,
    bucket_bytes: Bytes = 4 * 2**20,
    microbatches: int = 1,
) -> Plan:
    """Asynchronous decentralised SGD: every `period` steps, at its own pace, each even worker averages its weights with
    a random odd worker, while both go on computing (DP-22; Lian et al., ICML 2018)."""
    base = gossip(graph, cluster, direction="pair", period=period, draws=draws, seed=seed, bucket_bytes=bucket_bytes)
    sync = replace(base.sync[0], consistency=Consistency(staleness=-1))
    return replace(base, name="ad_psgd", sync=(sync,), schedule=replace(base.schedule, microbatches=microbatches))
