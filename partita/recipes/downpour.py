from __future__ import annotations

from dataclasses import replace

from partita.cluster.cluster import Cluster
from partita.cost.costs import Costs
from partita.graph.graph import Graph
from partita.plan.plan import Plan
from partita.plan.sync import Frequency
from partita.recipes.ps_async import ps_async
from partita.units import Bytes


def downpour(
    graph: Graph,
    cluster: Cluster,
    costs: Costs | None = None,
    *,
    push: int = 1,
    fetch: int = 1,
    servers: int = 1,
    own: bool = True,
    bucket_bytes: Bytes = 2**20,
    microbatches: int = 1,
    codec: str = "none",
) -> Plan:
    """Downpour SGD: each replica pushes the sum of its gradients over `push` minibatches and fetches the weights with
    every `fetch`-th push; servers apply each push at once, with the task's rule (DP-09; Dean et al., NIPS 2012;
    DistBelief's own rule is Adagrad). Between fetches a replica computes on what it fetched: DistBelief's also take
    steps of their own there."""
    base = ps_async(
        graph, cluster, servers=servers, own=own, bucket_bytes=bucket_bytes, microbatches=microbatches, codec=codec
    )
    frequency = Frequency(period=push, fetch=fetch)
    return replace(base, name="downpour", sync=(replace(base.sync[0], frequency=frequency),))
