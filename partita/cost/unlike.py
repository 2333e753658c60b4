"""Clusters of unlike devices: by how much each is slower than the first for a graph, by their data sheets.

Formulas and bounds of a search know seconds on the first device, and a `speed` of every other one. Here sheets become
such speeds; what the event clock is told goes by each device's own sheet (`cost/sheets`).

    h100 h100 t4 t4     operators of a step take 11, 11, 190, 190 ms     all h100, of speeds 1, 1, 0.058, 0.058
"""

from __future__ import annotations

from dataclasses import replace

from partita.cluster.cluster import Cluster, Device
from partita.cost.datasheet import operator_seconds
from partita.cost.sheets import sheet_of
from partita.graph.graph import Graph
from partita.graph.kinds import kinds_of
from partita.units import Seconds


def levelled(graph: Graph, cluster: Cluster) -> Cluster:
    """The cluster with speeds that say what devices compute beside the first one; itself if sheets are alike but for
    quotas, or once that is done."""
    first, *others = cluster.devices
    if any(other.stated for other in others) or all(sheet_of(other) == sheet_of(first) for other in others):
        return cluster
    batch = max(graph.minibatch // cluster.size, 1) if graph.symbolic else graph.batch
    whole = _seconds(graph, first, batch)
    speeds = {d: d.speed * whole / _seconds(graph, d, batch) for d in {*others} if sheet_of(d) != sheet_of(first)}

    def made(device: Device) -> Device:
        return replace(device, speed=speeds[device], stated=device.speed) if device in speeds else device

    return cluster.changed(made)


def _seconds(graph: Graph, device: Device, batch: int) -> Seconds:
    """Of the operators of a step on a device."""
    kinds, whole = kinds_of(graph), sheet_of(device)
    each = [operator_seconds(whole, operator, concrete, batch) for operator, concrete in kinds.at(batch)]
    return sum(each[number] for number in kinds.number)
