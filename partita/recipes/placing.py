"""Which devices work and which serve: devices of their own, after the workers, or the fastest devices of workers."""

from __future__ import annotations

from statistics import median

from partita.cluster.cluster import Cluster
from partita.plan.mesh import Mesh
from partita.plan.sync import Servers


def workers_on(cluster: Cluster, servers: int, own: bool) -> Mesh:
    """The workers beside so many servers: one on each device, less those that the servers have of their `own`."""
    return Mesh((("data", cluster.size - servers if own else cluster.size),))


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
