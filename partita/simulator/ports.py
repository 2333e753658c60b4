"""The resources of a cluster: the processor of each rank and the two directions of each port, as token buckets."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from partita.arrays import Indices, Ints, Reals
from partita.cluster.cluster import Cluster, Device, Port
from partita.cost.costs import Host
from partita.cost.wiring import Wiring
from partita.simulator.activities import Resources, resources_of
from partita.units import Seconds

QUOTA_PERIOD: Final = 0.02
PEAK: Final = 10  # times the bandwidth of a link, while it has tokens
Row = tuple[float, float, float]


@dataclass(frozen=True)
class Ports:
    """Resource r < cluster.size is the processor of rank r, in cores; then come ports, in payload bytes, and at the end
    the cores that emulated devices share.

    `wiring` says which part of a link's bandwidth payload gets.
    """

    cluster: Cluster
    wiring: Wiring
    hosts: tuple[Host, ...] = ()

    @cached_property
    def table(self) -> tuple[tuple[Row, ...], dict[tuple[int, ...], int], dict[tuple[int, ...], int]]:
        """(rate, peak, burst) of each resource, and the resources of every port's two directions by path."""
        rows = [processor(device) for device in self.cluster.devices]
        up: dict[tuple[int, ...], int] = {}
        down: dict[tuple[int, ...], int] = {}
        for climb in self.cluster.climbs:
            for port in climb:
                if port.path not in up:
                    up[port.path], down[port.path] = len(rows), len(rows) + port.link.duplex
                    rows += [self.port(port)] * (1 + port.link.duplex)
        return tuple(rows), up, down

    def port(self, port: Port) -> Row:
        """(rate, peak, burst) of one direction of a port, in payload bytes a second and bytes."""
        rate = self.wiring.payload(self.cluster, port)
        return rate, PEAK * rate if port.link.burst else rate, float(port.link.burst)

    @cached_property
    def refill(self) -> Seconds:
        """Seconds in which the quota of a processor that rests fills its bucket, the longest; 0 without quotas."""
        rows = map(processor, self.cluster.devices)
        return max((burst / rate for rate, _, burst in rows if burst), default=0.0)

    @cached_property
    def resources(self) -> Resources:
        """The resources of the clock: those of `table`, then the cores that devices share."""
        return resources_of((*self.table[0], *((host.cores, host.cores, 0.0) for host in self.hosts)))

    @property
    def wires(self) -> range:
        """The resources that are directions of ports."""
        return range(self.cluster.size, len(self.table[0]))

    @cached_property
    def host_of(self) -> Ints:
        """The resource of the cores that each rank's device stands on (-1: its own)."""
        found = np.full(self.cluster.size, -1, np.int64)
        for place, host in enumerate(self.hosts):
            found[list(host.ranks)] = len(self.table[0]) + place
        return found

    @cached_property
    def climbs(self) -> tuple[Indices, Indices, Reals]:
        """Per rank and level from the root down: its port's resources upwards and downwards (-1: none), seconds."""
        _, up, down = self.table
        climbs = self.cluster.climbs
        depth = max(len(climb) for climb in climbs)
        upwards, downwards = (np.full((len(climbs), depth), -1, np.int32) for _ in range(2))
        seconds = np.zeros((len(climbs), depth))
        for rank, climb in enumerate(climbs):
            upwards[rank, : len(climb)] = [up[port.path] for port in climb]
            downwards[rank, : len(climb)] = [down[port.path] for port in climb]
            seconds[rank, : len(climb)] = [port.link.latency for port in climb]
        return upwards, downwards, seconds

    def routes(self, source: Ints, target: Ints) -> tuple[NDArray[np.intp], Indices, Reals]:
        """(message, resource) pairs of all that the messages from `source` to `target` pass, and each one's latency."""
        upwards, downwards, seconds = self.climbs
        apart = ~np.logical_and.accumulate(upwards[source] == upwards[target], axis=1)
        climbed, descended = apart & (upwards[source] >= 0), apart & (downwards[target] >= 0)
        (up, level), (down, floor) = np.nonzero(climbed), np.nonzero(descended)
        resource = np.concatenate([upwards[source[up], level], downwards[target[down], floor]])
        latency = (seconds[source] * climbed).sum(axis=1) + (seconds[target] * descended).sum(axis=1)
        return np.concatenate([up, down]), resource, latency


def processor(device: Device) -> Row:
    """A CPU quota of c cores is a token bucket: c * 20 ms of a whole core at the beginning of every 20 ms, and as much
    again where it was left unused; on average it holds half a filling more than one that fills all the time."""
    if device.ghost or device.cores == 0 or device.cores >= 1:
        return max(device.cores, 1.0), max(device.cores, 1.0), 0.0
    return device.cores, 1.0, 1.5 * device.cores * QUOTA_PERIOD
