"""What a group of ranks has between them: the links that its messages pass, and the devices at their ends.

    root            ranks 0, 1   near 300, nothing far
 100/  \\10          ranks 1, 2   near 63, far 10: the slower of what either passes
300|    |63         A link that only others pass is no matter, however slow.
 0   1   2   3
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from math import inf

from partita.cluster.cluster import Cluster
from partita.cost.kernels import ASSUMED, bandwidth_of
from partita.units import BytesPerSecond, Seconds


@dataclass(frozen=True, slots=True)
class Between:
    """The slowest of what a group has.

    near, far       bytes a second of a device's port inside its machine, and of the others that they pass (infinite:
                    none)
    way             seconds of latency from machine to machine
    sums, mesh      as in Group, of the switches that its devices are connected to
    memory          bytes a second of a device's memory
    multiprocessors of a device
    handling        speed of a device in what messages ask of it
    """

    near: BytesPerSecond
    far: BytesPerSecond
    way: Seconds
    sums: float
    mesh: tuple[tuple[int, ...], ...]
    memory: BytesPerSecond
    multiprocessors: int
    handling: float


def between_of(group: Sequence[int], cluster: Cluster) -> Between:
    """What these ranks have between them."""
    climbs = [cluster.climbs[rank] for rank in group]
    paths = [climb[-1].path for climb in climbs]
    shared = sum(1 for _ in takewhile(lambda one: one[0] == one[1], zip(min(paths), max(paths), strict=False)))
    inside = cluster.inside
    near = [climb[-1].link.bandwidth for climb in climbs if climb[-1].path in inside and shared < len(climb)]
    across = [[port.link for port in climb[shared:] if port.path not in inside] for climb in climbs]
    devices = [*{id(device): device for device in (cluster.devices[rank] for rank in group)}.values()]
    switches = [*{id(switch): switch for switch in (cluster.switches[rank] for rank in group)}.values()]
    return Between(
        min(near, default=inf), min((link.bandwidth for links in across for link in links), default=inf),
        2 * max(sum(link.latency for link in links) for links in across),
        min(switch.sums for switch in switches), max(switch.mesh for switch in switches),
        min(map(bandwidth_of, devices)),
        min(device.multiprocessors or ASSUMED for device in devices), min(device.handling for device in devices),
    )  # fmt: skip
