"""Which devices serve: devices of their own, after the workers, or the fastest devices of workers."""

from __future__ import annotations

from statistics import median

from partita.cluster.cluster import Cluster
from partita.plan.sync import Servers


def servers_on(cluster: Cluster, count: int, own: bool) -> Servers:
    """`count` servers on devices of their `own`, or on the fastest devices of workers; with a count of 0 one on each
    that is at least as fast as the median, so that a slow device does not serve as well."""
    paces = [device.pace for device in cluster.devices]
    if not own and count == 0:
        middle = median(paces)
        count = sum(pace >= middle for pace in paces)
    if own or count > cluster.size:
        return Servers(count, own)
    at = tuple(sorted(sorted(range(cluster.size), key=lambda rank: -paces[rank])[:count]))
    return Servers(count, own, at=() if at == tuple(range(count)) else at)
