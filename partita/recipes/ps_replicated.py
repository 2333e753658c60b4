from __future__ import annotations

from dataclasses import replace

from partita.cluster.cluster import Cluster
from partita.cost.costs import Costs
from partita.graph.graph import Graph
from partita.plan.mesh import Mesh
from partita.plan.plan import Plan
from partita.plan.sync import Servers
from partita.recipes.ps_sync import ps_sync
from partita.units import Bytes


def ps_replicated(
    graph: Graph,
    cluster: Cluster,
    costs: Costs | None = None,
    *,
    servers: int = 1,
    replicas: int = 2,
    bucket_bytes: Bytes = 2**20,
    microbatches: int = 1,
) -> Plan:
    """Synchronous servers with chain replication: each sum goes down a chain of `replicas` servers before it is
    answered, so that losing one server loses no answered update (FT-02; Li et al., OSDI 2014)."""
    base = ps_sync(graph, cluster, bucket_bytes=bucket_bytes, microbatches=microbatches)
    sync = replace(base.sync[0], through=Servers(servers, replicas=replicas))
    mesh = Mesh((("data", cluster.size - servers * replicas),))
    return replace(base, name="ps_replicated", mesh=mesh, sync=(sync,))
