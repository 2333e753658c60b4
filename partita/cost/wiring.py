"""What messages ask of processors and links, beyond bytes over bandwidth."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from operator import itemgetter
from typing import Any, Final, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from partita.cluster.cluster import Cluster, Port
from partita.program.space import Kind
from partita.units import Bytes, BytesPerSecond, Seconds

Reals = NDArray[np.float64]
Curve: TypeAlias = tuple[tuple[Bytes, Seconds, Seconds, float], ...]
PASSES: Final = {Kind.REDUCE_SCATTER: 1, Kind.ALL_GATHER: 1}  # of other collectives: 2, there and back


@dataclass(frozen=True, slots=True)
class Circle:
    """A group that meets: how many `ranks` on how many `machines`, and the longest `way` between neighbours."""

    ranks: int
    machines: int = 1
    way: Seconds = 0.0


ALONE: Final = Circle(1)


def circle_of(group: Sequence[int], cluster: Cluster) -> Circle:
    """The circle of a group of ranks, without its ways."""
    return Circle(len(group), len({cluster.machines[rank] for rank in group}))


class Curves(Protocol):
    """What is known of collectives: of each kind, among a circle, rows (bytes, seconds, core-seconds, part): what one
    of so many bytes takes beyond its bytes over the bandwidth, of each processor, and which part of a ring's bytes goes
    over the ports meanwhile. No rows where nothing is known."""

    def of(self, kind: Kind, circle: Circle) -> Curve: ...


@dataclass(frozen=True, slots=True)
class Measured:
    """Curves of one circle, which stand for all."""

    all_reduce: Curve = ()
    reduce_scatter: Curve = ()
    all_gather: Curve = ()

    def of(self, kind: Kind, circle: Circle) -> Curve:
        halves = {Kind.REDUCE_SCATTER: self.reduce_scatter, Kind.ALL_GATHER: self.all_gather}
        return halves.get(kind, self.all_reduce)


@dataclass(frozen=True, slots=True)
class Wiring:
    """What the transport asks of processors and links.

    `start` is core-seconds a call; `sent`, `received` and `reduced` core-seconds a byte; `message` seconds of latency
    of a message; `curves` what collectives take; `efficiency` the part of a link's bandwidth that payload gets, and
    `inside` that of the links of devices within a machine, where it is another.
    """

    start: Seconds = 100e-6
    message: Seconds = 100e-6
    curves: Curves = Measured()
    sent: Seconds = 0.12e-9
    received: Seconds = 0.12e-9
    reduced: Seconds = 0.2e-9
    efficiency: float = 0.95
    inside: float | None = None

    def waiting(self, size: Bytes, circle: Circle, kind: Kind = Kind.ALL_REDUCE) -> Seconds:
        """Latency of a collective of `size` bytes: its curve's; p-1 messages in a chain where there is none, twice that
        for an all-reduce (CO-02)."""
        return float(self.waits(np.array([size], np.float64), circle, kind)[0][0])

    def carried(self, size: Bytes, circle: Circle, kind: Kind = Kind.ALL_REDUCE) -> float:
        """Bytes over the ports, of those of a ring."""
        return float(self.waits(np.array([size], np.float64), circle, kind)[1][0])

    def waits(self, sizes: Reals, circle: Circle, kind: Kind = Kind.ALL_REDUCE) -> tuple[Reals, Reals]:
        """Both of each size: as its curve has them, in between by the logarithm of the size."""
        curve = self.curves.of(kind, circle)
        if not curve:
            chain = PASSES.get(kind, 2) * (circle.ranks - 1) * (self.message + circle.way)
            return np.full(len(sizes), chain), np.ones(len(sizes))
        at, (known, waiting, part) = np.log(np.maximum(sizes, 1.0)), _columns(curve)
        return np.interp(at, known, waiting), np.interp(at, known, part)

    def least(self, circle: Circle, kind: Kind = Kind.ALL_REDUCE) -> tuple[Seconds, float]:
        """The least of both, whatever the size."""
        if curve := self.curves.of(kind, circle):
            return min(row[1] for row in curve), min(row[3] for row in curve)
        return self.waiting(1, circle, kind), 1.0

    def reducing(self, size: Bytes, circle: Circle, kind: Kind = Kind.ALL_REDUCE) -> Seconds:
        """Core-seconds of a collective of `size` bytes on each rank: its curve's, beyond the end by the byte; of each
        byte that is sent, received and summed where there is none."""
        curve, ranks = self.curves.of(kind, circle), circle.ranks
        if not curve:
            summed = 0.0 if kind is Kind.ALL_GATHER else self.reduced
            each = PASSES.get(kind, 2) * (self.sent + self.received) + summed
            return self.start + (ranks - 1) / ranks * size * each
        above = bisect_left(curve, size, key=itemgetter(0))
        if above == len(curve):
            return curve[-1][2] * size / curve[-1][0]
        (low, _, first, _), (high, _, last, _) = curve[max(above - 1, 0)], curve[above]
        return first + (last - first) * (size - low) / max(high - low, 1)

    def payload(self, cluster: Cluster, port: Port) -> BytesPerSecond:
        """Payload bytes a second of a port of a cluster."""
        inside = self.efficiency if self.inside is None else self.inside
        return port.link.bandwidth * (inside if port.path in cluster.inside else self.efficiency)


@cache
def _columns(curve: Curve) -> tuple[NDArray[Any], Reals, Reals]:
    size, waiting, _, part = np.array(curve, np.float64).T
    return np.log(np.maximum(size, 1.0)), waiting, part
