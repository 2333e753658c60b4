from __future__ import annotations

from dataclasses import replace

from partita.cluster.cluster import Cluster
from partita.cost.costs import Costs
from partita.graph.graph import Graph
from partita.plan.mesh import Mesh
from partita.plan.plan import Plan
from partita.plan.schedule import Schedule
from partita.plan.sync import Consistency, Frequency, Outer, Payload, Sync
from partita.plan.wire import Wire
from partita.units import Bytes
from partita.wire.codec import read_codecs


def diloco(
    graph: Graph,
    cluster: Cluster,
    costs: Costs | None = None,
    *,
    period: int = 50,
    fragments: int = 1,
    lag: int = 0,
    rate: float = 0.7,
    momentum: float = 0.9,
    keep: float = 0.0,
    bucket_bytes: Bytes = 4 * 2**20,
    microbatches: int = 1,
    codec: str = "none",
) -> Plan:
    """DiLoCo: every `period` steps an outer SGD with Nesterov momentum is applied to the mean change of the workers'
    weights (EX-01; Douillard et al. 2023). With several `fragments`, spread over the period, merged after `lag` steps
    and with the share `keep` of a worker's own weights, it is Streaming DiLoCo (Douillard et al. 2025), whose changes
    are quantised by a `codec`.

    A change that lasts is amplified by rate / (1 - momentum), 7 by default. Where that is too much (plain SGD near its
    largest stable rate), lower the task's rate or the `momentum`.
    """
    whole = graph.trained_bytes
    size = min(bucket_bytes, max(whole // (4 * fragments), 1)) if fragments > 1 else bucket_bytes
    wire = replace(Wire.even(size), codecs=read_codecs(codec))
    outer = Outer(rate, momentum, nesterov=momentum > 0, keep=keep)
    sync = Sync(
        payload=Payload.DELTA,
        consistency=Consistency(lag=lag),
        frequency=Frequency(period, fragments),
        outer=outer,
        wire=wire,
    )
    return Plan("diloco", Mesh((("data", cluster.size),)), schedule=Schedule(microbatches=microbatches), sync=(sync,))
