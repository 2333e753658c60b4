from __future__ import annotations

from dataclasses import replace

from partita.cluster.cluster import Cluster
from partita.cost.costs import Costs
from partita.graph.graph import Graph
from partita.plan.plan import Correction, Plan, Update
from partita.plan.sync import Consistency
from partita.recipes.ps_async import ps_async
from partita.units import Bytes


def dynsgd(
    graph: Graph,
    cluster: Cluster,
    costs: Costs | None = None,
    *,
    staleness: int = 3,
    servers: int = 1,
    own: bool = True,
    bucket_bytes: Bytes = 2**20,
    microbatches: int = 1,
) -> Plan:
    """DynSGD: under bounded staleness, the d-th update of a clock gets the weight 1 / d and revises the average of
    those before, so that the weights of a clock sum to 1 (DP-17; Jiang et al., SIGMOD 2017). Workers count
    alike, however many samples each has; a revision is the gradient that the server's optimizer steps with."""
    base = ps_async(graph, cluster, servers=servers, own=own, bucket_bytes=bucket_bytes, microbatches=microbatches)
    sync = replace(base.sync[0], consistency=Consistency(staleness=staleness))
    return replace(base, name="dynsgd", sync=(sync,), update=Update(corrections=(Correction("staleness"),)))
