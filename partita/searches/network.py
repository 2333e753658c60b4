"""What a formula needs to know of a cluster's links: how fast neighbours speak, near and far."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from partita.cluster.cluster import Cluster

Reals = NDArray[np.float64]


@dataclass(frozen=True)
class Network:
    """Bytes a second and seconds of latency between ranks, by the slowest link of a ring of the first n ranks, and
    between ranks that are n apart; entry n of each."""

    cluster: Cluster

    @cached_property
    def ring(self) -> tuple[Reals, Reals]:
        alone = np.array([(np.inf, 0.0)])
        bandwidth, latency = np.concatenate([alone, alone, self.steps[:-1]]).T
        return np.minimum.accumulate(bandwidth), np.maximum.accumulate(latency)

    @cached_property
    def steps(self) -> Reals:
        """(bandwidth, latency) from each rank to the next one."""
        return np.array([*(self.between(i, i + 1) for i in range(self.cluster.size - 1)), (np.inf, 0.0)])

    def rings(self, n: int) -> tuple[Reals, Reals]:
        """The same as `ring` of the first n ranks, the next n, and so on."""
        each = self.steps[: len(self.steps) // n * n].reshape(-1, n, 2)[:, :-1]
        return each[:, :, 0].min(axis=1, initial=np.inf), each[:, :, 1].max(axis=1, initial=0.0)

    def hops(self, n: int) -> tuple[Reals, Reals]:
        """Bytes a second and latency of messages from the first n ranks to the next n, from these to the next, and so
        on, a rank to the n-th after it: on equal devices whose messages all go alike, where they set out together and
        share the ports that they have in common; else of the first one alone."""
        edges = range(0, self.cluster.size - 2 * n + 1, n)
        together = [self._together(edge, n) for edge in edges] if self.alike else [()]
        if all(len(set(each)) == 1 for each in together):
            found = [each[0] for each in together]
        else:
            found = [self.between(edge, edge + n) for edge in edges]
        bandwidth, latency = np.array(found).reshape(-1, 2).T
        return bandwidth, latency

    def _together(self, first: int, n: int) -> tuple[tuple[float, float], ...]:
        """Of each message between n ranks and the next n its part of the port that is narrowest then, and latency."""
        routes = [self.cluster.route(rank, rank + n) for rank in range(first, first + n)]
        ways = [[*((port, 1) for port in climb), *((port, -1) for port in descent)] for climb, descent in routes]
        users = Counter((port.path, way) for each in ways for port, way in each)
        return tuple(
            (
                min(port.link.bandwidth / users[port.path, way] for port, way in each),
                sum(port.link.latency for port, _ in each),
            )
            for each in ways
        )

    @cached_property
    def alike(self) -> bool:
        """Whether all devices are equal and so are their ports, level by level."""
        ports = {tuple(port.link for port in climb) for climb in self.cluster.climbs}
        return len(set(self.cluster.devices)) == len(ports) == 1

    @cached_property
    def apart(self) -> tuple[Reals, Reals]:
        size = self.cluster.size
        found = [(np.inf, 0.0)]
        for n in range(1, size + 1):
            ways = [self.between(k * n, k * n + n) for k in range(size // n - 1)]
            found.append((min((b for b, _ in ways), default=np.inf), max((s for _, s in ways), default=0.0)))
        bandwidth, latency = np.array(found).T
        return bandwidth, latency

    @cached_property
    def widest(self) -> float:
        """The most bytes a second that any device sends."""
        return max((climb[-1].link.bandwidth for climb in self.cluster.climbs if climb), default=np.inf)

    def between(self, source: int, target: int) -> tuple[float, float]:
        climb, descent = self.cluster.route(source, target)
        links = [port.link for port in (*climb, *descent)]
        return min(link.bandwidth for link in links), sum(link.latency for link in links)
