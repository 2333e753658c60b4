"""Clusters of unlike devices: by how much each is slower than the first for a graph, by their data sheets.

Costs are seconds on the first device; every other one has a `speed`. Here sheets become such speeds.

    h100 h100 t4 t4     operators of a step take 11, 11, 190, 190 ms     all h100, of speeds 1, 1, 0.058, 0.058
"""

from __future__ import annotations

from dataclasses import replace

from partita.cluster.cluster import Cluster, Device
from partita.cost.datasheet import operator_seconds, without_quota
from partita.graph.graph import Graph
from partita.graph.kinds import kinds_of
from partita.units import Seconds


def levelled(graph: Graph, cluster: Cluster) -> Cluster:
    """The cluster with the first device's sheet for all, and speeds that make up for it in what is computed; itself if
    sheets are alike but for quotas, or once that is done."""
    first, *others = cluster.devices
    if any(other.stated for other in others) or all(_sheet(other) == _sheet(first) for other in others):
        return cluster
    batch = max(graph.minibatch // cluster.size, 1) if graph.symbolic else graph.batch
    whole = _seconds(graph, first, batch)
    sheet = without_quota(first)
    speeds = {d: d.speed * whole / _seconds(graph, d, batch) for d in {*others} if _sheet(d) != _sheet(first)}

    def made(device: Device) -> Device:
        if device not in speeds:
            return device
        part = device.cores if sheet.backend == "cpu" and 0 < device.cores < 1 else 1.0  # of the sheet's whole core
        flops, sustained = (tuple((name, part * each) for name, each in of) for of in (sheet.flops, sheet.sustained))
        return replace(
            device, speed=speeds[device], stated=device.speed, backend=sheet.backend, flops=flops, sustained=sustained,
            memory_bandwidth=part * sheet.memory_bandwidth, multiprocessors=sheet.multiprocessors,
        )  # fmt: skip

    return cluster.changed(made)


def _sheet(device: Device) -> tuple[object, ...]:
    whole = without_quota(device)
    return whole.backend, whole.flops, whole.sustained, whole.memory_bandwidth, whole.multiprocessors


def _seconds(graph: Graph, device: Device, batch: int) -> Seconds:
    """Of the operators of a step on a device."""
    kinds, whole = kinds_of(graph), without_quota(device)
    each = [operator_seconds(whole, operator, concrete, batch) for operator, concrete in kinds.at(batch)]
    return sum(each[number] for number in kinds.number)
