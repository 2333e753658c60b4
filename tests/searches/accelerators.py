"""A deep graph, and slow accelerators for it: what is computed takes microseconds, not launches alone."""

from __future__ import annotations

from dataclasses import replace

from partita.cluster.cluster import Cluster, Device, Group, Link
from partita.graph.graph import Graph, Optimizer
from tests.small import layers


def machines(size: int, bandwidth: float, memory: int = 0) -> Cluster:
    """Equal ones at one switch."""
    device = Device("gpu", cores=1.0, flops=(("fp32", 1e6),), memory=memory, memory_bandwidth=1e7)
    return Cluster(f"slow-{size}", Group("root", (device,) * size, (Link(bandwidth, 0.0),) * size))


def deep(batch: int) -> Graph:
    """Ten products, with momentum."""
    return replace(layers(8), global_batch=batch, optimizer=Optimizer("SGD", (("momentum", 1.0, "float32"),)))
