"""What messages, collectives and computing cost each other, as it was measured beside a task's own operators.

A thread that is woken to carry a message on waits for its turn on the processor, and that comes when an operator ends
or the system's clock ticks: 4 ms apart, where it ticks 250 times a second.

    computing   |aaaaaaaaaaaaaaaaaaaaaaaa|bbbbbbbbbbbbbbbbbb|          a, b: products of large matrices
    a message             m.......mm             m......mm            .: waits, with small ones less than half as long

So the same 64 kB take a neighbour 2 to 2.5 times as long beside a VGG's convolutions as beside products of 128 rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Any

from partita.cluster.cluster import Cluster
from partita.cost.costs import Host
from partita.cost.wiring import Circle, Wiring
from partita.program.space import Kind
from partita.units import Bytes, BytesPerSecond, Seconds

Replies = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Ranks:
    """What each of `size` ranks has at least: a port of `slowest` bytes a second, which saves up for a `burst`, and a
    `quota` of a core that `spread` ranks share; links to a neighbour have a latency of `way`."""

    size: int
    slowest: BytesPerSecond
    burst: Bytes
    quota: float
    spread: float
    way: Seconds

    @property
    def rate(self) -> float:
        """Core-seconds a second."""
        return min(self.quota, 1 / self.spread)


def ranks_of(cluster: Cluster, hosts: Sequence[Host]) -> Ranks:
    """The ranks of a cluster, of which some share the cores of `hosts`."""
    ports = [port.link for climb in cluster.climbs for port in climb]
    return Ranks(
        cluster.size, min(link.bandwidth for link in ports), min(link.burst for link in ports),
        min(min(device.cores or 1.0, 1.0) for device in cluster.devices),
        max([1.0, *(len(host.ranks) / host.cores for host in hosts)]), cluster.way(0, 1),
    )  # fmt: skip


def swapped(
    wiring: Wiring, ranks: Ranks, size: Bytes, start: Seconds | None = None, rate: float = 0.0
) -> Seconds:  # fmt: skip
    """What a message each way takes by the clock at once, beyond latency: with calls of `start` core-seconds, or those
    of messages, at so many core-seconds a second, or the ranks' own."""
    calls = 2 * (wiring.start if start is None else start)
    core = calls + (wiring.sent + wiring.received) * size
    return max(size / (ranks.slowest * wiring.efficiency), core / (rate or ranks.rate))


def with_contention(wiring: Wiring, replies: Replies, ranks: Ranks) -> Wiring:
    """The wiring with what messages, collectives and computing cost each other."""
    return _overlapped(_disturbed(wiring, replies), replies, ranks)


def _disturbed(wiring: Wiring, replies: Replies) -> Wiring:
    """With what messages cost computing, and computing behind a wait, medians over ranks: what both took for a byte in
    messages of some size, beyond what the wiring has for these themselves."""
    taken, size = (median(reply[name] for reply in replies) for name in ("taken", "size"))
    own = (wiring.sent + wiring.received) / 2 + wiring.start / size
    behind = [reply["cooling"] for reply in replies if reply["cooling"]]
    cooling = tuple((rows[0][0], median(more for _, more in rows)) for rows in zip(*behind, strict=True))
    return replace(wiring, disturbance=max(taken - own, 0.0), cooling=cooling) if taken else wiring


def _overlapped(wiring: Wiring, replies: Replies, ranks: Ranks) -> Wiring:
    """With the factors by which collectives, messages and hops take longer while their ranks compute than by the clock,
    where they and computing share each processor evenly; and messages while only others on their cores compute."""
    circle, width, half = Circle(ranks.size), ranks.slowest * wiring.efficiency, ranks.rate / 2

    def collected(kind: Kind, size: Bytes) -> Seconds:
        passes = 2 if kind is Kind.ALL_REDUCE else 1
        bytes_ = wiring.carried(size, circle, kind) * passes * (ranks.size - 1) / ranks.size * size
        latency, core = wiring.waiting(size, circle, kind), wiring.reducing(size, circle, kind) / half
        saved = min(ranks.burst, latency * width)  # by a port, behind the collective before, and goes at once
        return latency + max((bytes_ - saved) / width, core)

    def moved(size: Bytes, rate: float = half) -> Seconds:
        core = wiring.start + max(wiring.sent, wiring.received) * size
        return ranks.way + wiring.message + max(size / width, core / rate)

    def hopped(size: Bytes) -> Seconds:
        return ranks.way + wiring.hop(size) + swapped(wiring, ranks, size, wiring.hopping_start)

    return replace(
        wiring, overlap=_factors(replies, Kind.ALL_REDUCE, partial(collected, Kind.ALL_REDUCE)),
        gather_overlap=_factors(replies, Kind.ALL_GATHER, partial(collected, Kind.ALL_GATHER)),
        message_overlap=_factors(replies, "message", moved), hop_overlap=_factors(replies, "message", hopped),
        others_overlap=_factors(replies, "others", partial(moved, rate=ranks.rate)),
    )  # fmt: skip


def _factors(replies: Replies, name: str, own: Callable[[Bytes], Seconds]) -> tuple[tuple[Bytes, float], ...]:
    """By size, how many times as long as its `own` seconds something takes, medians over ranks, once at least."""
    rows = [dict(reply["overlapped"].get(name, [])) for reply in replies if reply["overlapped"]]
    walls = {size: [each[size] for each in rows if size in each] for size in sorted({n for each in rows for n in each})}
    return tuple((size, max(median(wall) / own(size), 1.0)) for size, wall in walls.items())
