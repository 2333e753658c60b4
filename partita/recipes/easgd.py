from __future__ import annotations

from dataclasses import replace

from partita.cluster.cluster import Cluster
from partita.cost.costs import Costs
from partita.graph.graph import Graph
from partita.plan.mesh import Mesh
from partita.plan.plan import Plan
from partita.plan.schedule import Schedule
from partita.plan.sync import Consistency, Frequency, Outer, Payload, Servers, Sync
from partita.plan.wire import Wire
from partita.units import Bytes


def easgd(
    graph: Graph,
    cluster: Cluster,
    costs: Costs | None = None,
    *,
    period: int = 4,
    rate: float = 0.0,
    servers: int = 0,
    bucket_bytes: Bytes = 4 * 2**20,
    microbatches: int = 1,
) -> Plan:
    """Elastic averaging SGD: every `period` steps each worker and a centre move towards each other by `rate` times
    their difference (0: 0.9 over the number of workers; DP-19; Zhang, Choromanska & LeCun, NIPS 2015). The result is
    the centre. With `servers` the centre is on these, and each worker meets it at its own pace."""
    workers = cluster.size - servers
    wire = Wire.even(bucket_bytes)
    sync = Sync(
        payload=Payload.ELASTIC, frequency=Frequency(period), outer=Outer(rate or 0.9 / max(workers, 1)), wire=wire
    )
    if servers:
        sync = replace(sync, through=Servers(servers), consistency=Consistency(staleness=-1))
    return Plan("easgd", Mesh((("data", workers),)), schedule=Schedule(microbatches=microbatches), sync=(sync,))
