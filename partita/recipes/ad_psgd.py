from __future__ import annotations

from dataclasses import replace
from typing import Any

from partita.cluster.cluster import Cluster
from partita.graph.graph import Graph
from partita.plan.plan import Plan
from partita.plan.sync import Consistency
from partita.recipes.gossip import gossip
from partita.units import Bytes


def ad_psgd(
    graph: Graph,
    cluster: Cluster,
    costs: Any = None,
    *,
    period: int = 1,
    draws: int = 8,
    seed: int = 0,
    bucket_bytes: Bytes = 4 * 2**20,
    microbatches: int = 1,
) -> Plan:
    """Every `period` steps, each at its own pace, every even worker averages with a random odd one, while both compute
    (DP-22; Lian et al., ICML 2018)."""
    base = gossip(graph, cluster, direction="pair", period=period, draws=draws, seed=seed, bucket_bytes=bucket_bytes)
    sync = replace(base.sync[0], consistency=Consistency(staleness=-1))
    return replace(base, name="ad_psgd", sync=(sync,), schedule=replace(base.schedule, microbatches=microbatches))
