"""What NCCL's collectives take on links that are known by data sheets alone: algorithms x protocols, the fastest.

ring   0 -> 1 -> 2 -> 3 -> 0    p-1 hops each way, (p-1)/p n bytes over each link each way
tree   nodes by halves          there and back: inside a node from one to the next, then log2 of the nodes; 2 n bytes
NVLS   all -> switch -> all     the switch sums: one hop, (p+1)/p n bytes over each link for both ways

LL sends a flag with every 4 bytes (quick, half the bandwidth at most), LL128 one with every 120, Simple one with every
chunk (slow, all of the bandwidth). Seconds of hops and shares of bandwidth are those by which NCCL itself chooses
(NVIDIA/nccl 2.28, src/graph/tuning.cc and topo.h). They leave out what a collective takes beyond them, for NCCL only
compares: LAUNCH, LANDING and FLAGGED are fitted to all-reduces on 2 to 8 A100 (benchmarks/truth/links.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cache
from math import ceil, inf, log2
from typing import Final

import numpy as np

from partita.arrays import Reals
from partita.cluster.cluster import Cluster
from partita.cost.between import Between, between_of
from partita.cost.rows import Curve
from partita.cost.wiring import PASSES, Circle, Wiring
from partita.program.space import Kind
from partita.units import BytesPerSecond, Seconds

Hops = tuple[float, float, float]  # microseconds by protocol


class Protocol(IntEnum):
    """NCCL's protocols, in its own order: messages with a flag in every 8 bytes, with one in every 128, or in
    chunks."""

    LL = 0
    LL128 = 1
    SIMPLE = 2


# Published: baseLatencies, hwLatencies, treeCorrectionFactor (powers of two from 64 B) and shares of bandwidth.
RING, TREE = (6.6, 14.0, 8.4), (6.8, 14.0, 8.4)
RING_HOP: Final[dict[str, Hops]] = {"nvlink": (0.6, 1.9, 3.4), "pcie": (1.0, 2.5, 5.7), "network": (2.7, 4.0, 14.0)}
TREE_HOP: Final[dict[str, Hops]] = {"nvlink": (0.6, 1.25, 4.0), "pcie": (1.0, 1.9, 4.0), "network": (5.0, 8.5, 14.0)}
NVLS_HOP: Final = 25.0
STUMBLES: Final = np.array([
    [1, 1, 1, 1, .9, .8, .7, .7, .7, .7, .6, .5, .4, .4, .5, .6, .7, .8, .9, 1, 1, 1, 1, 1],
    [1, 1, 1, 1, 1, .9, .8, .8, .8, .7, .6, .6, .6, .6, .6, .6, .8, .9, .9, .9, .9, 1, 1, 1],
    [.9, .9, .9, .9, .9, .9, .9, .8, .7, .6, .6, .5, .5, .5, .5, .6, .7, .8, .7, .7, .8, .9, .9, .9],
])  # fmt: skip
NVLINK: Final = 0.8  # payload of an NVLink: 20 of 25 GB/s (SM70 and SM80; 20.6 on SM90, 40.1 of 50 on SM100); PCIe too
QUICK: Final = 0.365  # of that, LL's: llMaxBws, 87.7 of an A100's 240 GB/s (39 of 120, 141 of 371, 282 of 722)
FAR_QUICK: Final = 35e9  # the most LL bytes a second between nodes: llMaxBws
BRANCHED: Final = 0.92  # of a ring's bandwidth, a tree's; between nodes 0.85 of that
NETTED: Final = 3.0  # least microseconds of a ring's hop of Simple where others cross the network; 1 of LL
PLATEAU: Final = 1.4  # times as long are a ring's hops of Simple between nodes
INFINIBAND: Final = 4e-6  # seconds of a way from node to node that the hops over a network contain
# Fitted.
LAUNCH: Final = 25e-6  # seconds of a collective on the device beyond hops and bytes
LANDING: Final = 0.25  # of the device's memory bandwidth, that at which a ring's last chunk is copied to its place
FLAGGED: Final = 0.8  # of the link's payload, LL128's (NCCL reckons with 0.92)
# Set: what the network's protocol leaves (InfiniBand's and EFA's packets of 4 KiB), what a call asks of the device, and
# above which bandwidth a link inside a machine is an NVLink (PCIe 5 x16 has 63 GB/s, NVLink 1 80).
NETWORK: Final = 0.95
CALL: Final = 10e-6
MESSAGE: Final = 5e-6  # seconds of latency of one, assumed
CHANNELS: Final = 16  # of NCCL's, each of which takes a multiprocessor as long as bytes flow
PCIE: Final = 64e9
SIZES: Final = np.unique(np.round(2.0 ** np.arange(6, 35.1, 0.5)))


@dataclass(frozen=True, slots=True)
class Fabric:
    """The links of accelerators: payload bytes a second `near`, of a device inside its machine, and `far`, of a
    machine; `way` seconds from machine to machine; `kind` of the near ones; the part of it at which switches sum. What
    arrives lands at `landing` bytes a second. In a `mesh` a group's devices have only the wires between themselves.
    While bytes flow, the part `occupied` of a device does not compute, of whatever speed; the slowest has `speed`."""

    near: BytesPerSecond
    far: BytesPerSecond
    way: Seconds = 0.0
    kind: str = "nvlink"
    sums: float = 0.0
    mesh: tuple[tuple[int, ...], ...] = ()
    landing: BytesPerSecond = inf
    occupied: float = 0.0
    speed: float = 1.0

    def rate(self, ranks: int, machines: int) -> BytesPerSecond:
        """Bytes a second of a ring."""
        near = self.near * narrowest(self.mesh, max(ranks // machines, 1))
        return min(near, self.far) if machines > 1 else near

    def ports(self, machines: int) -> BytesPerSecond:
        """Bytes a second of the ports that a ring goes over."""
        return min(self.near, self.far) if machines > 1 else self.near


@dataclass(frozen=True, slots=True)
class Fabrics:
    """The curves of circles, each by the links that it has; where a circle does not say, by those of the `whole`
    cluster. Bytes that flow keep no host who is `launching` from its work."""

    whole: Fabric
    launching: bool = False

    def of(self, kind: Kind, circle: Circle) -> Curve:
        """The curve of a kind of collective among a circle, as in `Curves`."""
        fabric = fabric_between(circle.between) if circle.between else self.whole
        if self.launching:
            fabric = replace(fabric, occupied=0.0, speed=1.0)
        return curve_of(fabric, kind, circle.ranks, circle.machines)


def fabric_of(cluster: Cluster) -> Fabric:
    """That of a cluster, by its slowest links."""
    return fabric_between(between_of(range(cluster.size), cluster))


@cache
def fabric_between(between: Between) -> Fabric:
    """That of a group of ranks."""
    kind = "pcie" if between.near <= PCIE else "nvlink"
    return Fabric(
        NVLINK * between.near, NETWORK * between.far, between.way, kind, between.sums, between.mesh,
        LANDING * between.memory, min(CHANNELS / between.multiprocessors, 0.5), between.handling,
    )  # fmt: skip


@cache
def narrowest(mesh: tuple[tuple[int, ...], ...], count: int) -> float:
    """The part of a device's wires that lead out of the worst-connected of any part of the first `count` devices: every
    ring through them all has to leave it. 1 where there is no mesh, and for one device."""
    if not mesh or not 1 < count <= len(mesh):
        return 1.0
    parts = [[i for i in range(count) if bits >> i & 1] for bits in range(1, 2**count - 1)]
    cuts = (sum(mesh[i][j] for i in part for j in range(count) if j not in part) for part in parts)
    return min(cuts) / max(map(sum, mesh))


def wired(cluster: Cluster) -> Wiring:
    """The wiring of a cluster of accelerators."""
    return Wiring(
        start=CALL, message=MESSAGE, curves=Fabrics(fabric_of(cluster)), sent=0.0, received=0.0, reduced=0.0,
        efficiency=NETWORK, inside=NVLINK,
    )  # fmt: skip


def of_hosts(wiring: Wiring) -> Wiring:
    """The same wiring for those who launch: bytes that flow keep no host from its work."""
    curves = wiring.curves
    return replace(wiring, curves=replace(curves, launching=True)) if isinstance(curves, Fabrics) else wiring


@cache
def curve_of(fabric: Fabric, kind: Kind, ranks: int, machines: int) -> Curve:
    """Rows of a wiring's curve: at each size the fastest of what there is, but for its bytes over the bandwidth."""
    if ranks < 2:
        return ()
    total, part = fastest(fabric, kind, ranks, machines, SIZES)
    ring = PASSES.get(kind, 2) * (ranks - 1) / ranks * SIZES / fabric.ports(machines)
    beyond = np.maximum(total - np.maximum(part * ring, CALL), 0.0)
    core = fabric.speed * np.maximum(fabric.occupied * part * ring, CALL)
    rows = zip(SIZES.tolist(), beyond.tolist(), core.tolist(), part.tolist(), strict=True)
    return tuple((int(size), wait, busy, share) for size, wait, busy, share in rows)


def fastest(fabric: Fabric, kind: Kind, ranks: int, machines: int, size: Reals) -> tuple[Reals, Reals]:
    """Seconds of so many bytes by the fastest way that there is, and the part of a ring's bytes that ports carry."""
    found = list(candidates(fabric, kind, ranks, machines, size))
    best = np.argmin([seconds for seconds, _ in found], axis=0)
    return np.min([seconds for seconds, _ in found], axis=0), np.array([part for _, part in found])[best]


def candidates(fabric: Fabric, kind: Kind, ranks: int, machines: int, size: Reals) -> Iterator[tuple[Reals, float]]:
    """(seconds, part of a ring's bytes that goes over the ports) of `size` bytes by each algorithm and protocol."""
    chain = ranks / (2 * (ranks - 1)) if kind is Kind.BROADCAST else 1.0
    for protocol in Protocol:
        if protocol is Protocol.LL128 and fabric.kind == "pcie":
            continue
        yield ring(fabric, kind, ranks, machines, protocol, size), chain
        if kind is Kind.ALL_REDUCE:
            yield tree(fabric, ranks, machines, protocol, size), 1.0
    if kind is Kind.ALL_REDUCE and machines == 1 and fabric.sums:
        part = (ranks + 1) / (2 * (ranks - 1)) / fabric.sums
        yield LAUNCH + NVLS_HOP * 1e-6 + (ranks + 1) / ranks * size / (fabric.sums * fabric.near), part


def ring(fabric: Fabric, kind: Kind, ranks: int, machines: int, protocol: Protocol, size: Reals) -> Reals:
    """Seconds of so many bytes. A broadcast is a chain through which chunks flow."""
    chain, passes = kind is Kind.BROADCAST, PASSES.get(kind, 2)
    steps = ranks if chain else passes * (ranks - 1)
    crossing = 0 if machines == 1 else machines if chain else passes * (machines - 1)
    near = (TREE_HOP if chain else RING_HOP)[fabric.kind][protocol]
    if machines > 1:
        near = max(near, NETTED if protocol is Protocol.SIMPLE else 1.0)
    exposed = chain or ranks == machines
    hops = (steps - crossing) * near + crossing * _crossing(fabric, TREE_HOP if exposed else RING_HOP, protocol)
    if machines > 1 and protocol is Protocol.SIMPLE:
        hops *= PLATEAU
    landing = 0.0 if chain or protocol is not Protocol.SIMPLE else 1 / fabric.landing
    share = _share(fabric, ranks, machines, protocol)
    each: Reals = size / ranks * (steps / (share * fabric.rate(ranks, machines)) + landing)
    return LAUNCH + (RING[protocol] + hops) * 1e-6 + each


def tree(fabric: Fabric, ranks: int, machines: int, protocol: Protocol, size: Reals) -> Reals:
    """Seconds of an all-reduce of so many bytes."""
    inside, depth = (ranks / machines - 1) * TREE_HOP[fabric.kind][protocol], ceil(log2(machines))
    hops = TREE[protocol] + 2 * (inside + depth * _crossing(fabric, TREE_HOP, protocol))
    share = BRANCHED * (0.85 if machines > 1 else 1.0)
    share *= (1 / 3.8, 7 / 9 if machines == 1 else 120 / 128, 1.0)[protocol]
    stumbles = np.interp(np.log2(np.maximum(size, 64.0) / 64), np.arange(STUMBLES.shape[1]), STUMBLES[protocol])
    each: Reals = 2 * size / (share * stumbles * fabric.rate(ranks, machines))
    return LAUNCH + hops * 1e-6 + each


def _crossing(fabric: Fabric, table: dict[str, Hops], protocol: Protocol) -> float:
    """Microseconds of a hop from machine to machine; Simple's flush goes the way once more."""
    further = max(fabric.way - INFINIBAND, 0.0) * 1e6
    return table["network"][protocol] + further * (2 if protocol is Protocol.SIMPLE else 1)


def _share(fabric: Fabric, ranks: int, machines: int, protocol: Protocol) -> float:
    """The part of a ring's bandwidth that a protocol reaches."""
    if protocol is Protocol.LL:
        if machines > 1:
            return min(0.5, FAR_QUICK / fabric.rate(ranks, machines))
        return QUICK if fabric.kind == "nvlink" else 0.5
    return FLAGGED if protocol is Protocol.LL128 else 1.0
