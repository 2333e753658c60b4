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
from partita.recipes.idle import check_idle_knobs
from partita.units import Bytes


def admm(
    graph: Graph,
    cluster: Cluster,
    costs: Costs | None = None,
    *,
    period: int = 4,
    penalty: float = 0.1,
    need: int = 0,
    staleness: int = 4,
    bucket_bytes: Bytes = 4 * 2**20,
    microbatches: int = 1,
) -> Plan:
    """Consensus ADMM: each worker minimises its part of the augmented Lagrangian by `period` steps (DP-20; Zhang &
    Kwok, ICML 2014); clip_norm bounds the loss's gradient alone. The result is the consensus variable. With `need`, a
    master updates it once `need` workers have come, none left out more than `staleness` times in a row."""
    if not need:
        check_idle_knobs(admm, "where all are waited for; give need=1 or more", staleness=staleness)
    wire = Wire.even(bucket_bytes)
    sync = Sync(payload=Payload.DUAL, frequency=Frequency(period), outer=Outer(penalty=penalty), wire=wire)
    if need:
        sync = replace(sync, through=Servers(), consistency=Consistency(staleness, need=need, late="keep"))
    workers = cluster.size - bool(need)
    return Plan("admm", Mesh((("data", workers),)), schedule=Schedule(microbatches=microbatches), sync=(sync,))
