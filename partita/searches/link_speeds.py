"""Bandwidth and latency between the ranks of a cluster, as closed formulas need them: near and far, one by one and
along rings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import TypeVar

import numpy as np

from partita.arrays import Flags, Ints, Reals
from partita.cluster.cluster import Cluster
from partita.cost.wiring import Circle, Wiring, circle_of
from partita.program.space import Kind
from partita.simulator.ports import PEAK
from partita.units import Seconds

T = TypeVar("T", float, Reals)


def with_burst(seconds: T, saved: Seconds) -> T:
    """Seconds that bytes take on a port after an idle time, at its steady rate `seconds`: as much as it sends in
    `saved` seconds goes at PEAK times that rate, for a burst."""
    return np.maximum(seconds / PEAK, seconds - saved) if saved else seconds


@dataclass(frozen=True)
class LinkSpeeds:
    """Payload bytes a second and seconds of latency on a cluster: of rings of n ranks, by their slowest link, and of
    messages between ranks that are n apart. What collectives wait for besides is in the `wiring`."""

    cluster: Cluster
    wiring: Wiring

    @cached_property
    def rates(self) -> dict[tuple[int, ...], float]:
        """Payload bytes a second of each port."""
        ports = {port.path: port for climb in self.cluster.climbs for port in climb}
        return {path: self.wiring.payload(self.cluster, port) for path, port in ports.items()}

    @cached_property
    def below(self) -> Counter[tuple[int, ...]]:
        """How many devices each port leads to."""
        return Counter(port.path for climb in self.cluster.climbs for port in climb)

    def circle(self, n: int, first: int = 0) -> Circle:
        """The Circle of the n ranks from `first` on, its `way` the longest latency from one to the next."""
        way = self.steps[first : first + n - 1, 1].max(initial=0.0)
        return replace(circle_of(range(first, first + n), self.cluster), way=float(way))

    def half_sums(self, size: Reals, data: Ints, far: Ints, sharded: Flags) -> tuple[Reals, Reals, Reals]:
        """Of halves of sums of so many bytes among the first `data` ranks, or where `sharded` of scatters and gathers,
        the latency, the part of a ring's bytes that ports carry, and bytes a second of its slowest step. Where `far` is
        above 0, as many ranks from that one on are among them."""
        found = np.zeros((3, len(size)))
        codes = data * (self.cluster.size + 1) + far
        for code in np.unique(codes).tolist():
            circle, width = self.circles(*divmod(code, self.cluster.size + 1))
            for kinds, some in (((Kind.REDUCE_SCATTER, Kind.ALL_GATHER), sharded), ((Kind.ALL_REDUCE,), ~sharded)):
                at = np.flatnonzero(some & (codes == code))
                waits = [self.wiring.waits(size[at], circle, kind) for kind in kinds]
                found[0, at] = np.sum([one for one, _ in waits], axis=0) / 2
                found[1, at] = np.mean([part for _, part in waits], axis=0)
                found[2, at] = width
        return found[0], found[1], found[2]

    @cached_property
    def circles(self) -> Callable[[int, int], tuple[Circle, float]]:
        """(ranks, far) -> the circle of so many ranks, with as many from the one that is `far` on, and bytes a second
        of its slowest step."""

        def of(n: int, far: int) -> tuple[Circle, float]:
            if not far:
                return self.circle(n), float(self.ring[0][n])
            width, way = self.between(0, far)
            ranks = (*range(n), *range(far, far + n))
            circle = replace(circle_of(ranks, self.cluster), way=max(self.circle(n).way, way))
            return circle, min(float(self.ring[0][n]), width)

        return cache(of)

    def least_part(self, n: int) -> float:
        """The least part of a ring's bytes that any all-reduce among n ranks carries: one machine's may be less."""
        ranks = [each[:n] for each in self.of_machine if len(each) >= n]
        circles = {circle_of(each, self.cluster) for each in ranks}
        return min((1.0, *(self.wiring.least(circle)[1] for circle in circles)))

    @cached_property
    def of_machine(self) -> tuple[tuple[int, ...], ...]:
        """The ranks of each machine."""
        found: dict[int, list[int]] = {}
        for rank, machine in enumerate(self.cluster.machines):
            found.setdefault(machine, []).append(rank)
        return tuple(map(tuple, found.values()))

    @cached_property
    def ring(self) -> tuple[Reals, Reals]:
        """Bytes a second and latency of the slowest step along the first n ranks, shape [size + 1] each."""
        alone = np.array([(np.inf, 0.0)])
        bandwidth, latency = np.concatenate([alone, alone, self.steps[:-1]]).T
        return np.minimum.accumulate(bandwidth), np.maximum.accumulate(latency)

    @cached_property
    def steps(self) -> Reals:
        """(bandwidth, latency) from each rank to the next one."""
        return np.array([*(self.between(i, i + 1) for i in range(self.cluster.size - 1)), (np.inf, 0.0)])

    def rings(self, n: int) -> tuple[Reals, Reals]:
        """Bytes a second and latency of the slowest step along the first n ranks, along the next n, and so on."""
        each = self.steps[: len(self.steps) // n * n].reshape(-1, n, 2)[:, :-1]
        return each[:, :, 0].min(axis=1, initial=np.inf), each[:, :, 1].max(axis=1, initial=0.0)

    def hops(self, n: int) -> tuple[Reals, Reals]:
        """Bytes a second and latency of messages from the first n ranks to the next n, from these to the next, and so
        on, a rank to the n-th after it: on equal devices whose messages all go alike, where they set out together and
        share the ports that they have in common; else of the first one alone."""
        return self._messages([(edge, edge + n) for edge in range(0, self.cluster.size - 2 * n + 1, n)], n)

    def rounds(self, n: int) -> tuple[Reals, Reals]:
        """Bytes a second and latency of messages from the second n ranks to the first n, from the third, and so on, as
        `hops` has them."""
        return self._messages([(edge, 0) for edge in range(n, self.cluster.size - n + 1, n)], n)

    def _messages(self, ways: list[tuple[int, int]], n: int) -> tuple[Reals, Reals]:
        """Of messages that each of n ranks from the first of a pair on sends to its like among n from the other on."""
        together = [self._together(*way, n) for way in ways] if self.alike else [()]
        if all(len(set(each)) == 1 for each in together):
            found = [each[0] for each in together]
        else:
            found = [self.between(*way) for way in ways]
        bandwidth, latency = np.array(found).reshape(-1, 2).T
        return bandwidth, latency

    def _together(self, source: int, target: int, n: int) -> tuple[tuple[float, float], ...]:
        """Of each of these messages its part of the port that is narrowest then, and latency."""
        routes = [self.cluster.route(source + k, target + k) for k in range(n)]
        ways = [[*((port, 1) for port in climb), *((port, -1) for port in descent)] for climb, descent in routes]
        users = Counter((port.path, way) for each in ways for port, way in each)
        return tuple(
            (
                min(self.rates[port.path] / users[port.path, way] for port, way in each),
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
        """Bytes a second and latency of the slowest messages between ranks n apart, n of which set out at once, shape
        [size + 1] each."""
        size = self.cluster.size
        found = [(np.inf, 0.0)]
        for n in range(1, size + 1):
            ways = [self.between(k * n, k * n + n, n) for k in range(size // n - 1)]
            found.append((min((b for b, _ in ways), default=np.inf), max((s for _, s in ways), default=0.0)))
        bandwidth, latency = np.array(found).T
        return bandwidth, latency

    @cached_property
    def saved(self) -> Seconds:
        """Seconds of a port's bandwidth that an idle time saves up, the most of any port: bounds count them for all."""
        ports = {port.path: port.link.burst for climb in self.cluster.climbs for port in climb}
        return max((burst / self.rates[path] for path, burst in ports.items()), default=0.0)

    @cached_property
    def widest(self) -> float:
        """The most bytes a second that any device sends."""
        return max((self.rates[climb[-1].path] for climb in self.cluster.climbs if climb), default=np.inf)

    def between(self, source: int, target: int, together: int = 1) -> tuple[float, float]:
        """Payload bytes a second and latency of a message; of one of several `together`, whose ranks are neighbours:
        those that lie behind one port share it."""
        climb, descent = self.cluster.route(source, target)
        ports = (*climb, *descent)
        width = min(self.rates[port.path] / min(together, self.below[port.path]) for port in ports)
        return width, sum(port.link.latency for port in ports)
