from __future__ import annotations

from typing import Any

from partita.cluster.cluster import Cluster
from partita.graph.graph import Graph
from partita.plan.mesh import Mesh
from partita.plan.plan import Plan
from partita.plan.schedule import Schedule
from partita.plan.sync import Consistency, Frequency, Outer, Payload, Sync
from partita.plan.wire import Wire
from partita.units import Bytes


def diloco(
    graph: Graph,
    cluster: Cluster,
    costs: Any = None,
    *,
    period: int = 50,
    fragments: int = 1,
    lag: int = 0,
    rate: float = 0.7,
    momentum: float = 0.9,
    keep: float = 0.0,
    bucket_bytes: Bytes = 4 * 2**20,
    microbatches: int = 1,
) -> Plan:
    """Every `period` steps an outer SGD with Nesterov momentum takes the mean of what the workers' own optimizers have
    changed (EX-01; Douillard et al. 2023). A change that lasts is taken `rate / (1 - momentum)` times, 7 unless told
    otherwise: where that is too far (SGD at a rate as large as it bears alone), lower the task's rate or the momentum.
    In `fragments` spread over the period, merged `lag` steps after they were taken with a part `keep` of the worker's
    own weights: Streaming DiLoCo (Douillard et al. 2025)."""
    whole = sum(parameter.tensor.size() for parameter in graph.trainable)
    size = min(bucket_bytes, max(whole // (4 * fragments), 1)) if fragments > 1 else bucket_bytes
    wire = Wire(bucket_bytes=size, first_bucket_bytes=size, slice_bytes=size)
    outer = Outer(rate, momentum, nesterov=momentum > 0, keep=keep)
    sync = Sync(
        payload=Payload.DELTA,
        consistency=Consistency(lag=lag),
        frequency=Frequency(period, fragments),
        outer=outer,
        wire=wire,
    )
    return Plan("diloco", Mesh((("data", cluster.size),)), schedule=Schedule(microbatches=microbatches), sync=(sync,))
