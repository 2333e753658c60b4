"""Costs made up by hand: operators at a price, messages at latency and bandwidth, everything else for nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from partita.cluster.cluster import Cluster, Device, Group, Link
from partita.cost.costs import Costs
from partita.cost.touch import Touch
from partita.cost.wiring import Wiring
from partita.graph.batch import substitute
from partita.graph.graph import Graph
from partita.graph.signature import signature
from partita.plan.sync import SharedMemory
from partita.program.program import Program
from partita.recipes.catalogue import call
from partita.units import BytesPerSecond, Seconds

FREE = Touch(0.0, 0.0)


def whole_cores(size: int, bandwidth: BytesPerSecond) -> Cluster:
    """Devices of one whole core each at one switch, without token buckets."""
    return Cluster(f"whole-{size}", Group("root", (Device(cores=1.0),) * size, (Link(bandwidth, 0.0),) * size))


def machines_for(text: str, graph: Graph, cluster: Cluster) -> Cluster:
    """The cluster, as one machine for a recipe whose workers share its memory."""
    one = replace(cluster, name=f"local:{cluster.size}")
    shares = any(isinstance(sync.through, SharedMemory) for sync in call(text, graph, one).sync)
    return one if shares else cluster


def signatures(graph: Graph, batch: int) -> list[str]:
    """The signature of each operator for `batch` samples."""
    concrete = substitute(graph, batch)
    return [signature(operator, concrete) for operator in concrete.operators]


def batches_of(program: Program) -> tuple[int, ...]:
    """The batch sizes of its segments, for each of which operators need a price."""
    return tuple(sorted({segment.batch for segment in program.segments}))


def priced(
    graph: Graph, cluster: Cluster, batches: Sequence[int], *, operator: Seconds = 1e-3, latency: Seconds = 0.0,
    copy: Touch = FREE, update: Touch = FREE, sent: float = 0.0,
) -> Costs:  # fmt: skip
    """`operator` seconds for each operator whatever the batch, `latency` seconds for each message of a chain."""
    table = {name: operator for batch in batches for name in signatures(graph, batch)}
    wiring = Wiring(start=0.0, message=latency, sent=sent, received=sent, reduced=0.0, efficiency=1.0)
    return Costs(
        graph, cluster, table, copy=copy, add=copy, update=update, load=FREE, sizes=tuple(batches), instruction=0.0,
        wiring=wiring,
    )  # fmt: skip
