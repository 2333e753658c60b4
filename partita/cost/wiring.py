"""The cost of messages and collectives beyond bytes over bandwidth: core-seconds and latency."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from partita.arrays import Ints, Reals
from partita.cluster.cluster import Cluster, Port
from partita.cost.between import Between, between_of
from partita.cost.rows import Curve, Rows, cores_of, interpolated, value_at, waits_of
from partita.program.space import Kind
from partita.units import Bytes, BytesPerSecond, Seconds

CURVED: Final = (Kind.ALL_REDUCE, Kind.REDUCE_SCATTER, Kind.ALL_GATHER)  # kinds that have curves of their own
FAVOUR: Final = 8.0  # times the share of the next message in a queue
MOST_TURNS: Final = 4  # the first of a long queue gets no more than FAVOUR to this power times the share of the last
PASSES: Final = {Kind.REDUCE_SCATTER: 1, Kind.ALL_GATHER: 1}  # times that a part goes round the ring; 2 for others


@dataclass(frozen=True, slots=True)
class Circle:
    """The group of a collective, as far as its cost depends on it: `ranks` ranks on `machines` machines, `way`, the
    longest latency of links between neighbours, and what they have `between` them (None: what the cluster has)."""

    ranks: int
    machines: int = 1
    way: Seconds = 0.0
    between: Between | None = None


ALONE: Final = Circle(1)


def circle_of(group: Sequence[int], cluster: Cluster) -> Circle:
    """The Circle of a group of ranks, with a `way` of 0."""
    machines = len({cluster.machines[rank] for rank in group})
    return Circle(len(group), machines, between=between_of(group, cluster))


class Curves(Protocol):
    """The costs of collectives by size, measured or from data sheets."""

    def of(self, kind: Kind, circle: Circle) -> Curve:
        """Rows (bytes, latency, core-seconds, part) for collectives of a kind among a circle; none if not known.

        A collective of so many bytes takes `latency` seconds beyond its bytes over the bandwidth and `core-seconds` on
        each rank, and takes the ports for `part` times a ring's bytes.
        """


@dataclass(frozen=True, slots=True)
class Measured:
    """Curves that were measured on one circle; they are used for all circles."""

    all_reduce: Curve = ()
    reduce_scatter: Curve = ()
    all_gather: Curve = ()

    def of(self, kind: Kind, circle: Circle) -> Curve:
        """The curve of a kind; that of the all-reduce for all but its halves."""
        halves = {Kind.REDUCE_SCATTER: self.reduce_scatter, Kind.ALL_GATHER: self.all_gather}
        return halves.get(kind, self.all_reduce)


@dataclass(frozen=True, slots=True)
class Post:
    """How a rank has messages: at so `many` moments of a step, so many `together` at each; or, if it computes nothing,
    so far `apart`: core-seconds that those which it serves compute for each of its messages.

    A message that wakes threads for itself alone took 0.3 to 0.45 core-ms, once a step or eight times, 0.25 where two
    go at once, and 0.2 where three do or where dozens follow each other."""

    many: float = 1.0
    together: float = 1.0
    apart: Seconds | None = None


RARELY: Final = Post()


@dataclass(frozen=True, slots=True)
class Wiring:
    """The costs of a transport, as a probe measures them or data sheets say.

    Between two Rows values are linear in the logarithm of where they are. () and None stand for what was not measured:
    there is no such cost then, or the one in brackets.

    a message
      start            core-seconds of its call, at either end
      starts, joint    those by how often in a step a rank posts messages (`start`), and by how many it posts at once
                       how many times as long they take
      serving          those of a rank that computes nothing, by core-seconds that others compute for each (`starts`)
      waking           core-seconds that a message of a size takes more, as it wakes threads more often
      sent, received   core-seconds of each byte, at the sender and at the receiver
      message          seconds of latency between two lanes
      value            the same of values from stage to stage, which wake no lane (`message`); `value_start` their call
      efficiency       the part of a link's bandwidth that payload gets; `inside` of links within a machine (the same)
    a collective
      curves           by kind and circle: latency, core-seconds, and how many times a ring's bytes the ports carry
      row              the curve of an all-reduce right behind another, where those in `curves` have `rested`
                       core-seconds of computing between them
      reduced          core-seconds of adding a byte
      hops, hop_start  by size the latency of each of a chain of messages (`message`), and the call of one (`start`)
      first_hop        core-seconds that each rank takes more of its first hop, for which its threads are woken
      schedules        by algorithm the seconds of an all-reduce among all ranks, by size
    beside computing
      overlap          by size the factor by which a collective takes longer while its ranks compute
      gather_overlap, message_overlap, hop_overlap   that of a gather or scatter (`overlap`), a message, a hop
      others_overlap   that of a message while its ranks compute nothing, but others on their cores do
      disturbance      core-seconds that both take longer for each byte sent or received meanwhile
      coding           core-seconds that it takes longer for each of those in which another lane codes
      cooling          by seconds for which a rank has computed nothing, core-seconds that it takes more afterwards
    ports that several use at once
      congestion       by size the factor by which a server's messages take more of its ports: queues overflow
      crowding         by the number of peers that both ends have, such rows (`congestion`)
      queue            by size the bytes of those posted at once that leave in their order, before the others share
    """

    start: Seconds = 100e-6
    starts: Rows = ()
    joint: Rows = ()
    serving: Rows = ()
    waking: Rows = ()
    sent: Seconds = 0.12e-9
    received: Seconds = 0.12e-9
    message: Seconds = 100e-6
    value: Seconds | None = None
    value_start: Seconds | None = None
    efficiency: float = 0.95
    inside: float | None = None
    curves: Curves = Measured()
    row: Curve = ()
    rested: Seconds = 0.0
    reduced: Seconds = 0.2e-9
    hops: Rows = ()
    hop_start: Seconds | None = None
    first_hop: Seconds = 0.0
    schedules: tuple[tuple[str, Rows], ...] = ()
    overlap: Rows = ()
    gather_overlap: Rows = ()
    message_overlap: Rows = ()
    hop_overlap: Rows = ()
    others_overlap: Rows = ()
    disturbance: Seconds = 0.0
    coding: float = 0.0
    cooling: Rows = ()
    congestion: Rows = ()
    crowding: tuple[tuple[int, Rows], ...] = ()
    queue: Rows = ()

    @property
    def undisturbed(self) -> bool:
        """Whether what moves or is coded takes no longer beside computing, nor computing beside that."""
        factors = self.overlap, self.gather_overlap, self.message_overlap, self.hop_overlap, self.others_overlap
        return not any((*factors, self.row)) and self.disturbance <= 0 and self.coding <= 0

    @property
    def crossing(self) -> Seconds:
        """Latency of a message of values from stage to stage."""
        return self.message if self.value is None else self.value

    @property
    def posted(self) -> bool:
        """Whether it matters how ranks have messages."""
        return bool(self.starts)

    def starting(self, size: Bytes, post: Post = RARELY, *, value: bool = False) -> Seconds:
        """Core-seconds of the call of a message of `size` bytes, of values from stage to stage or of anything else:
        linear in the logarithms of the size, of when and how many are posted, or of how far apart they are."""
        rows, at = (self.starts, post.many) if post.apart is None else (self.serving, post.apart)
        start = value_at(rows, at) if rows else self.start
        if self.joint and post.apart is None:  # no more is saved than where messages follow each other quickly
            start = max(start * value_at(self.joint, post.together), self.starts[-1][1])
        if value:  # who waits for it is awake
            return start if self.value_start is None else min(start, self.value_start)
        return start + (value_at(self.waking, size) if self.waking else 0.0)

    @property
    def hopping_start(self) -> Seconds:
        """Core-seconds of the call of a hop's message, at either end."""
        return self.start if self.hop_start is None else self.hop_start

    def hop(self, size: float) -> Seconds:
        """Latency of a hop of a collective, a message of `size` bytes: linear in the logarithm of the size."""
        return float(self.hopping(np.array([size], np.float64))[0])

    def hopping(self, sizes: Reals) -> Reals:
        """`hop` for an array of sizes."""
        return interpolated(self.hops, sizes) if self.hops else np.full(len(sizes), self.message)

    def scheduled(self, size: Bytes) -> dict[str, Seconds]:
        """Seconds of an all-reduce of `size` bytes among all ranks by each algorithm that was timed: linear in the
        logarithm of the size, below the first one the same, beyond the last one in proportion to the size."""
        return {name: value_at(rows, size) * max(size / rows[-1][0], 1.0) for name, rows in self.schedules}

    def congested(self, sizes: Reals) -> Reals:
        """The factors of `congestion` for messages of these sizes: linear in the logarithm of the size, the last one
        beyond it."""
        return interpolated(self.congestion, sizes) if self.congestion else np.ones(len(sizes))

    def crowded(self, sizes: Reals, peers: Ints) -> Reals:
        """The factors of `crowding` for messages of these sizes between ranks with so many peers at once: linear in
        their number, none with one peer, the last one beyond it."""
        if not self.crowding:
            return self.congested(sizes)
        known = np.array([1, *(many for many, _ in self.crowding)])
        factors = np.stack([np.ones(len(sizes)), *(interpolated(rows, sizes) for _, rows in self.crowding)])
        below, who = np.clip(np.searchsorted(known, peers, "right") - 1, 0, len(known) - 2), np.arange(len(sizes))
        part = np.clip((peers - known[below]) / (known[below + 1] - known[below]), 0.0, 1.0)
        found: Reals = (1 - part) * factors[below, who] + part * factors[below + 1, who]
        return found

    def precedence(self, sizes: Reals, places: Ints, peers: Ints) -> Reals:
        """How many times the share of the last one messages of these sizes get that are posted at these places, from 0,
        of so many to different ranks.

            queue       |---------|           Those that the queue holds go one after the other; one that it holds in
            messages    |----|----|----|      part is done when it is where the rest, of all that are left, is shared.
        """
        if not self.queue:
            return np.ones(len(sizes))
        held = interpolated(self.queue, sizes) / np.maximum(sizes, 1.0)
        whole = np.minimum(np.floor(held), peers - 1)
        first = FAVOUR ** ((1 + whole - places) * np.minimum(1.0, MOST_TURNS / (1 + whole)))
        partly = 1 / (1 - np.minimum(held - whole, 1 - 1 / FAVOUR))
        found: Reals = np.where(places < whole, first, np.where((places == whole) & (whole < peers - 1), partly, 1.0))
        return found

    def slowdown(self, size: Bytes, of: str = "sum") -> float:
        """The factor by which a "sum", "gather" (a scatter as well), "message" or "hop" of `size` bytes takes longer
        while its ranks compute, or a message while only "others" do: linear in the logarithm of the size; beyond the
        last one the seconds that it adds stay."""
        rows = {
            "sum": self.overlap, "gather": self.gather_overlap or self.overlap, "message": self.message_overlap,
            "hop": self.hop_overlap, "others": self.others_overlap,
        }[of]  # fmt: skip
        if not rows:
            return 1.0
        beyond = min(1.0, rows[-1][0] / max(size, 1))
        return 1.0 + beyond * (float(interpolated(rows, np.array([size], np.float64))[0]) - 1.0)

    def waiting(self, size: Bytes, circle: Circle, kind: Kind = Kind.ALL_REDUCE) -> Seconds:
        """Latency of a collective of `size` bytes: its curve's; without a curve that of p - 1 messages one after the
        other, for an all-reduce of 2 (p - 1) (CO-02)."""
        return float(self.waits(np.array([size], np.float64), circle, kind)[0][0])

    def behind(self, size: Bytes, circle: Circle) -> tuple[Seconds, Seconds]:
        """(latency, core-seconds) that an all-reduce of `size` bytes takes more right behind another one."""
        if not self.row:
            return 0.0, 0.0
        waiting, core = float(waits_of(self.row, np.array([size], np.float64))[0][0]), cores_of(self.row, size)
        return max(waiting - self.waiting(size, circle), 0.0), max(core - self.reducing(size, circle), 0.0)

    def carried(self, size: Bytes, circle: Circle, kind: Kind = Kind.ALL_REDUCE) -> float:
        """For how many times a ring's bytes a collective takes the ports."""
        return float(self.waits(np.array([size], np.float64), circle, kind)[1][0])

    def waits(self, sizes: Reals, circle: Circle, kind: Kind = Kind.ALL_REDUCE) -> tuple[Reals, Reals]:
        """(`waiting`, `carried`) for an array of sizes; between rows of a curve linear in the logarithm of the size."""
        curve = self.curves.of(kind, circle)
        if not curve:
            hops = PASSES.get(kind, 2) * (circle.ranks - 1)
            return hops * (self.hopping(sizes / circle.ranks) + circle.way), np.ones(len(sizes))
        return waits_of(curve, sizes)

    def least(self, circle: Circle, kind: Kind = Kind.ALL_REDUCE) -> tuple[Seconds, float]:
        """Lower bounds of (`waiting`, `carried`) over all sizes."""
        if curve := self.curves.of(kind, circle):
            return min(row[1] for row in curve), min(row[3] for row in curve)
        sizes = np.array([size * circle.ranks for size, _ in self.hops] or [1], np.float64)
        return float(self.waits(sizes, circle, kind)[0].min()), 1.0

    def reducing(self, size: Bytes, circle: Circle, kind: Kind = Kind.ALL_REDUCE) -> Seconds:
        """Core-seconds of a collective of `size` bytes on each rank: its curve's, in proportion to the size beyond the
        curve's end; without a curve those of each byte that is sent, received and summed."""
        curve, ranks = self.curves.of(kind, circle), circle.ranks
        if not curve:
            summed = 0.0 if kind is Kind.ALL_GATHER else self.reduced
            each = PASSES.get(kind, 2) * (self.sent + self.received) + summed
            return self.start + (ranks - 1) / ranks * size * each
        return cores_of(curve, size)

    def payload(self, cluster: Cluster, port: Port) -> BytesPerSecond:
        """The bandwidth of a port that is left for payload."""
        inside = self.efficiency if self.inside is None else self.inside
        return port.link.bandwidth * (inside if port.path in cluster.inside else self.efficiency)
