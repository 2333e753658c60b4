from __future__ import annotations

from dataclasses import replace
from typing import Any

from partita.cluster.cluster import Cluster
from partita.graph.graph import Graph
from partita.plan.plan import Plan
from partita.plan.sync import SharedMemory
from partita.recipes.hogwild import hogwild
from partita.units import Bytes


def buckwild(
    graph: Graph,
    cluster: Cluster,
    costs: Any = None,
    *,
    bucket_bytes: Bytes = 4 * 2**20,
    microbatches: int = 1,
) -> Plan:
    """`hogwild` on weights of 16 bits (bfloat16), every write rounded at random and right in the mean (DP-12; De Sa et
    al., NIPS 2015)."""
    base = hogwild(graph, cluster, bucket_bytes=bucket_bytes, microbatches=microbatches)
    sync = replace(base.sync[0], through=SharedMemory("bfloat16"))
    return replace(base, name="buckwild", sync=(sync,))
