"""What a formula needs to know of a cluster's links: how fast neighbours speak, near and far."""

from __future__ import annotations

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
        size = self.cluster.size
        found = [(np.inf, 0.0), (np.inf, 0.0), *(self.between(i, i + 1) for i in range(size - 1))]
        bandwidth, latency = np.array(found).T
        return np.minimum.accumulate(bandwidth)[: size + 1], np.maximum.accumulate(latency)[: size + 1]

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
