"""Seconds that gathers and scatters of divided weights add to a place's passes: what nothing is computed beside.

wire     G1 G2 ---------- G1' Z1 G2' ---   a pass begins when all buckets of its stage are there; all but the first are
compute  ...... F ------- X .......... B   gathered once the pass before is over, and so is the first, where that pass
                                           used it (X: given back). Sums to scatter go ahead of them, but for the last
wire           Z1 -- Z2 -- Z3 ...          where only gradients are divided, a pack waits for room: until the sum of the
compute  B P1 P2 ... P3 .. P4 F            bucket that was packed ROOM before it is scattered
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

from partita.cost.touch import Touch
from partita.cost.wiring import Circle, Wiring
from partita.graph.graph import Graph
from partita.graph.homes import homes_of
from partita.lowering.divided import ROOM
from partita.lowering.layout import completion
from partita.lowering.schedules import Row
from partita.plan.memory import Shard
from partita.program.space import Kind
from partita.recipes.balance import numbered
from partita.searches.link_speeds import LinkSpeeds, with_burst
from partita.searches.pipes import Pipes
from partita.units import Bytes, Seconds

Buckets = tuple[tuple[Bytes, int], ...]  # (bytes, tensors) of each


@dataclass(frozen=True, slots=True)
class CollectiveTimes:
    """What the replicas of one place take to sum and gather buckets.

    circle, wiring  the group of ranks, and what its collectives wait
    width, saved    bytes a second of their ring, and for how many seconds ports send faster, by a burst
    tensor, byte    seconds of packing a bucket, for each tensor and for each byte
    item            bytes of a number: shares of a bucket are of whole ones
    """

    circle: Circle
    wiring: Wiring
    width: float
    saved: Seconds
    tensor: Seconds
    byte: Seconds
    item: float

    def half(self, size: Bytes) -> Seconds:
        """A scatter or gather of so many bytes, whichever waits less; the smallest share is what is not sent."""
        return _waiting(self.wiring, size, self.circle) + self._carried(size - self._share(size))

    def whole(self, size: Bytes) -> Seconds:
        """Both at once."""
        part = self.wiring.carried(size, self.circle)
        return self.wiring.waiting(size, self.circle) + self._carried(part * 2 * (size - self._share(size)))

    def packs(self, buckets: Buckets) -> list[Seconds]:
        """The packs of these."""
        return [self.tensor * tensors + self.byte * size for size, tensors in buckets]

    def _carried(self, size: float) -> Seconds:
        return with_burst(size / self.width, self.saved)

    def _share(self, size: Bytes) -> float:
        return self.item * -(-size // (self.item * self.circle.ranks))


@cache
def _waiting(wiring: Wiring, size: Bytes, circle: Circle) -> Seconds:
    return min(wiring.waiting(size, circle, kind) for kind in (Kind.REDUCE_SCATTER, Kind.ALL_GATHER))


class Gathers:
    """The gathers of a grid's points whose weights are divided; lives for one search."""

    def __init__(self, graph: Graph, links: LinkSpeeds) -> None:
        index, block = numbered(graph)[1], homes_of(graph).readers
        sizes = {p.name: p.tensor.size() for p in graph.parameters}
        read = {name: index[block.get(name, [0])] for name in completion(graph)}
        self.parameters = [(int(at.min()), int(at.max()), sizes[name]) for name, at in read.items()]
        self.buckets, self.item = cache(self._buckets), graph.item
        self.circle = cache(links.circle)

    def collectives(self, pipes: Pipes, i: int, place: int, wiring: Wiring, copy: Touch) -> CollectiveTimes:
        """Of a place of the i-th point, where packing is a `copy`."""
        near = pipes.hardware
        peak, width = float(near.peaks[i, place]), float(near.width[i, place])
        circle = self.circle(data := int(pipes.data[i]), place * data)
        byte = copy.element / self.item / peak
        return CollectiveTimes(circle, wiring, width, pipes.saved, copy.tensor / peak, byte, self.item)

    def _buckets(self, first: int, stop: int, most: Bytes) -> Buckets:
        """(bytes, tensors) of each bucket of the stage of these blocks, as they are laid out where no tensor is cut."""
        found: list[tuple[int, int]] = []
        for low, high, size in self.parameters:
            if first <= low and high < stop:
                if not found or found[-1][0] >= most:
                    found.append((0, 0))
                found[-1] = found[-1][0] + size, found[-1][1] + 1
        return tuple(found)

    def early(self, first: int, stop: int, most: Bytes) -> Bytes:
        """Bytes of the stage of these blocks that are packed before its last backward pass ends, at the least."""
        parts = [size for low, high, size in self.parameters if first <= low and high < stop]
        if not parts:
            return 0
        if max(parts) > most:  # large tensors are cut: what is in a bucket with a part of the last one is late
            return max(sum(parts[:-1]) - most, 0)
        return sum(parts) - self.buckets(first, stop, most)[-1][0]

    def waits(
        self, pipes: Pipes, i: int, rows: Sequence[Row], most: Bytes, blocks: int, wiring: Wiring, copy: Touch
    ) -> list[list[Seconds]]:  # fmt: skip
        """Seconds before each pass of each place of the i-th point, with buckets of so many bytes; none are counted
        before the first pass of a round and backward of the last microbatch, whose weights come as it goes on."""
        each = self._of_places(pipes, i, rows, most, blocks, wiring, copy)
        return [_waits([_stage(collectives, stage) for stage in stages], row) for row, collectives, stages in each]

    def crowded(
        self, pipes: Pipes, i: int, rows: Sequence[Row], most: Bytes, blocks: int, wiring: Wiring, copy: Touch,
        packed: str,
    ) -> list[list[Seconds]]:  # fmt: skip
        """Seconds before each pass of each place of the i-th point, where only gradients are divided, which are
        `packed` after that kind of pass: none are counted after the last one of a stage, which is cut where its buckets
        are complete."""
        each = self._of_places(pipes, i, rows, most, blocks, wiring, copy)
        return [_crowded([_stall(collectives, stage) for stage in stages], row, packed)
                for row, collectives, stages in each]  # fmt: skip

    def _of_places(
        self, pipes: Pipes, i: int, rows: Sequence[Row], most: Bytes, blocks: int, wiring: Wiring, copy: Touch
    ) -> Iterator[tuple[Row, CollectiveTimes, Sequence[Buckets]]]:  # fmt: skip
        """Of each place of the i-th point its row, its collectives, and the buckets of each of its stages."""
        edges = [*pipes.starts[i].ravel().tolist(), blocks]
        stages = [self.buckets(a, b, most) for a, b in pairwise(edges)]
        for place, row in enumerate(rows):
            yield row, self.collectives(pipes, i, place, wiring, copy), stages[place :: pipes.pipe]

    def tail(self, first: int, stop: int, most: Bytes, collectives: CollectiveTimes, shard: Shard) -> Seconds:
        """Seconds from when the last gradients of the stage of these blocks are packed to its next forward pass: their
        bucket goes round, and of divided gradients all new weights come after that."""
        parts = [size for low, high, size in self.parameters if first <= low and high < stop]
        buckets = self.buckets(first, stop, most)
        if not buckets or (shard is Shard.NONE and max(parts) > most):  # large tensors are cut there
            return 0.0
        if shard is Shard.NONE:
            return collectives.whole(buckets[-1][0])
        halves = [collectives.half(size) for size, _ in buckets]
        return halves[-1] + (sum(halves) if shard in (Shard.OPTIMIZER, Shard.GRADIENTS) else halves[-1])


def _stage(collectives: CollectiveTimes, buckets: Buckets) -> tuple[Seconds, Seconds, Seconds, Seconds]:
    """Seconds to gather all but the first bucket of a stage, and the first one after a forward pass; by how long that
    and the scatters of all but the last outlast the packs after a backward pass, and these scatters alone."""
    halves = [collectives.half(size) for size, _ in buckets]
    packs = collectives.packs(buckets)
    if not halves:
        return 0.0, 0.0, 0.0, 0.0
    first, scatters, all_ = packs[0], sum(halves[:-1]), sum(packs)
    both, alone = (max(begun + scatters - all_, 0.0) for begun in (max(first, halves[0]), first))
    return sum(halves[1:]), halves[0], both, alone


def _waits(stages: Sequence[tuple[Seconds, ...]], row: Row) -> list[Seconds]:
    """Those of one place."""
    finals = {(one.kind, one.chunk): one for one in row}
    whole = [one.kind == "F" or finals[one.kind, one.chunk] != one for one in row]
    found, several = [0.0] * len(row), all(others for others, *_ in stages)
    for k in range(1, len(row)):
        if whole[k]:
            found[k] = stages[row[k].chunk][0]
            if whole[k - 1]:
                _, first, both, alone = stages[row[k - 1].chunk]
                if row[k - 1].chunk == row[k].chunk:
                    found[k] += first if row[k - 1].kind == "F" else both
                else:
                    found[k] += several * (row[k - 1].kind == "B") * alone
    return found


def _stall(collectives: CollectiveTimes, buckets: Buckets) -> Seconds:
    """By how long the packs of a stage after one of its passes take longer than if they were not to wait for room."""
    packs, packed, gone = collectives.packs(buckets), 0.0, list[Seconds]()
    for n, ((size, _), pack) in enumerate(zip(buckets, packs, strict=True)):
        packed = max(packed, gone[n - ROOM] if n >= ROOM else 0.0) + pack
        gone.append(max(packed, gone[-1] if gone else 0.0) + collectives.half(size))
    return packed - sum(packs)


def _crowded(stages: Sequence[Seconds], row: Row, packed: str) -> list[Seconds]:
    """Those of one place."""
    finals = {(one.kind, one.chunk): one for one in row}
    return [0.0] + [
        stages[one.chunk] if one.kind == packed and finals[one.kind, one.chunk] != one else 0.0 for one in row[:-1]
    ]
