"""What ZeRO's three stages share: data parallelism whose state is divided over the replicas."""

from __future__ import annotations

from partita.cluster.cluster import Cluster
from partita.errors import PlanError
from partita.graph.graph import Graph
from partita.plan.memory import Memory, Shard
from partita.plan.mesh import Mesh
from partita.plan.plan import Plan
from partita.plan.schedule import Schedule
from partita.plan.sync import Sync
from partita.plan.wire import Wire
from partita.recipes.coded import coded
from partita.units import Bytes
from partita.wire.codec import read_codecs


def zero(
    name: str, graph: Graph, cluster: Cluster, memory: Memory, *, microbatches: int, bucket_bytes: Bytes, codec: str
) -> Plan:
    """Rajbhandari et al., SC 2020. The first bucket is smaller, so that it leaves sooner. With a codec gradients are
    encoded for their owners (ZeRO++'s, Wang et al., ICLR 2024); weights are sent as they are."""
    if memory.shard is Shard.NONE:
        raise PlanError(f"{name} divides state and shard=none divides none; leave shard out, or use ddp")
    wire = Wire(bucket_bytes=bucket_bytes, first_bucket_bytes=min(bucket_bytes, 2**20), codecs=read_codecs(codec))
    made = Plan(
        name, Mesh((("data", cluster.size),)), schedule=Schedule(microbatches=microbatches), sync=(Sync(wire=wire),),
        memory=memory,
    )  # fmt: skip
    return coded(made, graph)
