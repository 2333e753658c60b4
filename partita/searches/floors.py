"""What a point of the grid takes and holds at the least on the event clock, worked out from where it is really cut.

rank 0   F F F . . . . . B B B U     a round of rank r: the first microbatch's way to it, all of its own passes, the
rank r   . . F F F B B B . . . .     last one's way back; nobody's passes overlap, and rank 0 begins the next round
         way |-- own --| way back    after that. What it holds: state, what microbatches under way keep, one pass
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise, product
from typing import Final

import numpy as np
from numpy.typing import NDArray

from partita.cluster.cluster import Cluster
from partita.cost.datasheet import datasheet_costs
from partita.graph.graph import Graph
from partita.graph.homes import homes_of
from partita.lowering.schedules import under_way
from partita.plan.memory import Recompute, Shard
from partita.plan.schedule import Order
from partita.recipes.balance import blocks_of, by_time, by_time_each, numbered
from partita.recipes.pipeline import bandwidth_between
from partita.searches.network import Network
from partita.searches.sections import Sections
from partita.searches.space import RECOMPUTES, SCHEDULES, SHARDS, Space
from partita.units import Seconds

Reals = NDArray[np.float64]
Ints = NDArray[np.int64]
# How often a minibatch's bytes go round at the least, whatever is kept from pass to pass: of all gradients or weights.
PARAMETERS, GRADIENTS, OPTIMIZER = Shard.PARAMETERS, Shard.GRADIENTS, Shard.OPTIMIZER
WORD: Final = 4  # bytes of a parameter
MOST_STAGES: Final = 192  # of divisions that are worked out together
ONCE: Final = {Shard.NONE: 2, Shard.OPTIMIZER: 2, Shard.GRADIENTS: 1, Shard.PARAMETERS: 0}
EVERY: Final = {Shard.NONE: 0, Shard.OPTIMIZER: 0, Shard.GRADIENTS: 1, Shard.PARAMETERS: 2}


@dataclass(frozen=True, slots=True)
class Point:
    """A point of the grid but for what is sharded and for its buckets; `m` microbatches."""

    data: int
    pipe: int
    order: Order
    chunks: int
    m: int
    rule: Recompute


@dataclass(frozen=True)
class Floor:
    """No step takes less than `seconds`, and some device holds `memory` bytes or more."""

    seconds: Seconds
    memory: float


@dataclass(frozen=True, eq=False)
class Shape:
    """What points have in common that differ only in what is sharded and in their buckets. Of each chunk and place
    along the pipe, shape [chunks, places]: core-seconds of a microbatch's passes, `late` those of backward that no
    other place waits for; bytes that wait for backward, that the fullest pass needs, of parameters, and
    `unpaid` those that wait for what is late. `ahead` and
    `back`: seconds of a microbatch's way through all places from the `first` to each one, forward and home."""

    forward: Reals
    backward: Reals
    late: Reals
    ahead: Reals
    back: Reals
    first: int
    kept: Reals
    fullest: Reals
    state: Reals
    unpaid: Reals


class Floors:
    """The floors of a grid's points on data sheets' costs; lives for one search."""

    def __init__(self, graph: Graph, cluster: Cluster) -> None:
        self.graph, self.cluster, self.network = graph, cluster, Network(cluster)
        self.batch = graph.global_batch or graph.batch
        self.speeds = [device.pace for device in cluster.devices]
        self.peaks = [device.speed for device in cluster.devices]  # of a quota that was saved up
        self.costs = cache(lambda size: datasheet_costs(graph, cluster, (size,)))
        self.blocks = cache(lambda size: blocks_of(graph, cluster, None, size))
        self.sections = cache(lambda rule, staged: Sections(graph, rule, staged))
        self.work = cache(self._work)
        self.alike = cache(lambda size, *links: by_time_each(self.blocks(size), MOST_STAGES, *links))
        self.cut = cache(self._cut)
        self.many = cache(_many)
        self.shape = cache(self._shape)
        self.passes = cache(self._passes)

    def of(self, row: tuple[int, ...]) -> Floor:
        """The floor of a row of a space."""
        data, pipe, schedule, m, shard, recompute, bucket = row
        point = Point(data, pipe, SCHEDULES[schedule][1], SCHEDULES[schedule][2], m, RECOMPUTES[recompute])
        shape, state = self.shape(point), SHARDS[shard]
        seconds = max(self.passes(point, state is Shard.NONE), self._sent(point, state, shape))
        return Floor(seconds, self._memory(point, state, bucket, shape))

    def size(self, row: Ints) -> int:
        """Samples of a microbatch of a row of a space."""
        return int(self.batch // (row[0] * row[3]))

    # Of all points at once, wherever they are cut.

    def rough(self, space: Space) -> tuple[Reals, Reals]:
        """Seconds and bytes below which no point of a space is, as if the model could be cut at will.

        On p places that wait for each other, m microbatches of w seconds take w / (1 - (1 - 1/m)^p) at the least: what
        lies before a place, and m times its own, is longest where it is shortest if it is as long everywhere. Blocks
        count from the first on behind which all cuts are linked: with fewer places it would be more. Places
        that hold a_r microbatches hold k / sum(1 / a_r) bytes at the least of the k that a microbatch keeps.
        """
        data, pipe, m = (space.column(name).astype(np.float64) for name in ("data", "pipe", "microbatches"))
        schedule, shard = space.column("schedule"), space.column("shard")
        filled, put_off, round_ = (
            np.array([order is kind for _, order, _ in SCHEDULES])[schedule]
            for kind in (Order.FILL_DRAIN, Order.ZERO_BUBBLE, Order.INTERLEAVED)
        )
        price, chained, kept, widest = self._priced(space)
        even, bends = price * m / pipe, (pipe > 1) & ~put_off & ~round_
        total = np.where(bends, np.maximum(chained / (1 - (1 - 1 / m) ** pipe), even), even)
        sent = (data - 1) / data * self.state.sum() / pipe * (_times(ONCE, shard) + m * _times(EVERY, shard))
        sent = sent / (self.costs(1).wiring.efficiency * self.network.widest)
        sums = np.concatenate([[0.0], np.cumsum(1 / np.arange(1.0, max(pipe.max(), m.max()) + 1))])
        least = np.minimum(pipe, m).astype(np.int64)
        turns = np.where(filled, pipe / m, sums[least] + (pipe - least) / m)  # the sum of 1 / a_r
        turns = np.where(round_ | (pipe == 1), pipe, turns)
        state = self.state.sum() * self._each(data, pipe, shard)
        several = (pipe > 1) & ~round_
        gathered = np.where(several & (shard == SHARDS.index(PARAMETERS)), self.state.sum() * (1 - 1 / data), 0.0)
        made = np.where(several & (m > 1), self.state.sum(), 0.0)
        held = np.maximum((state + np.maximum(kept + gathered, made)) / pipe, kept / turns)  # as on all in the mean
        memory = np.maximum(held, np.where(put_off, 0.0, widest))
        return np.max([total / max(self.peaks), even / max(self.speeds), sent], axis=0), memory

    def _priced(self, space: Space) -> tuple[Reals, ...]:
        """Core-seconds of a microbatch, those of linked blocks, bytes that it keeps and that its fullest pass needs, of
        every point; a sample at its cheapest price for as many at once or more (they get no dearer in company)."""
        sizes, at = np.unique(
            self.batch // (space.column("data") * space.column("microbatches")), return_inverse=True
        )  # fmt: skip
        staged, rule = (space.column("pipe") > 1).astype(np.int64), space.column("recompute")
        priced = sorted({1, min(8, self.batch), self.batch}) if self.graph.symbolic else [self.graph.batch]
        found = np.zeros((4, 2, len(RECOMPUTES), len(sizes)))
        loose = np.flatnonzero(~self.sections(Recompute.NONE, True).linked)
        first = int(loose[-1]) + 1 if len(loose) else 0
        for step, again in product((False, True), range(len(RECOMPUTES))):
            sections, held = self.sections(RECOMPUTES[again], step), self.sections(RECOMPUTES[again], True)
            each = [np.sum(sections.seconds(self.costs(size), size), axis=0) / size for size in priced]
            for k, start in enumerate((0, first)):
                least = np.minimum.accumulate([blocks[start:].sum() for blocks in each][::-1])[::-1]
                found[k, int(step), again] = sizes * least[np.searchsorted(priced, sizes).clip(max=len(priced) - 1)]
            found[2, int(step), again] = [held.kept(size).sum() for size in sizes.tolist()]
            found[3, int(step), again] = [held.fullest(size).max() for size in sizes.tolist()]
        return tuple(table[staged, rule, at.ravel()] for table in found)

    def _each(self, data: Reals, pipe: Reals, shard: Ints) -> Reals:
        """Bytes of state a byte of parameters: themselves, gradients where somebody waits for them, the optimizer's."""
        owners = [np.where(shard >= SHARDS.index(kind), data, 1.0) for kind in (PARAMETERS, GRADIENTS, OPTIMIZER)]
        optimizer = self.graph.optimizer.state_bytes(1) / WORD
        return 1 / owners[0] + (data * pipe > 1) / owners[1] + optimizer / owners[2]

    # Where a point is cut, as the recipes do.

    def _cut(self, size: int, speeds: tuple[float, ...], widths: tuple[float, ...]) -> Ints:
        if len(set(speeds)) == len(set(widths)) == 1:
            return np.array(self.alike(size, speeds[0], widths[0])[len(speeds) - 1])
        return np.array(by_time(self.blocks(size), speeds, widths))

    def starts(self, point: Point, size: int) -> Ints:
        """The first block of each stage."""
        if point.pipe == 1:
            return np.zeros(1, np.int64)
        places = [range(place * point.data, (place + 1) * point.data) for place in range(point.pipe)] * point.chunks
        speeds = tuple(min(self.speeds[rank] for rank in place) for place in places)
        widths = tuple(bandwidth_between(self.cluster, one[0], other[0]) for one, other in pairwise(places))
        return self.cut(size, speeds, widths)

    def _work(self, rule: Recompute, staged: bool, size: int) -> tuple[Reals, ...]:
        """Of each block: forward, backward, what of that returns; bytes kept, and of the fullest pass; bytes of
        messages to the next block, and from it; bytes that wait for what is put off."""
        sections, costs = self.sections(rule, staged), self.costs(size)
        held = self.sections(rule, True)  # no rule keeps less without stages
        return (
            *sections.seconds(costs, size), sections.returning(costs, size), held.kept(size), held.fullest(size),
            *sections.links(size), held.waiting(size),
        )  # fmt: skip

    def _shape(self, point: Point) -> Shape:
        size, staged = self.batch // (point.data * point.m), point.pipe > 1
        starts = self.starts(point, size)
        forward, backward, returning, kept, fullest, sent, got, waiting = self.work(point.rule, staged, size)
        columns = [np.add.reduceat(one, starts) for one in (forward, backward, returning, kept, self.state, waiting)]
        total = np.concatenate([[0.0], np.cumsum(kept)[:-1]])
        columns.append(np.maximum.reduceat(total + fullest, starts) - total[starts])
        ours, theirs, returns, waits, state, late, most = (one.reshape(point.chunks, point.pipe) for one in columns)
        put_off = point.order is Order.ZERO_BUBBLE
        if put_off:
            returns[0, 0] = late[0, 0] = 0.0
        else:
            returns = theirs
        fastest = _of_places(self.peaks, point)
        ways = [np.zeros(point.pipe), np.zeros(point.pipe)]
        cuts = starts[1 : point.pipe] - 1
        loose = np.flatnonzero(~self.sections(point.rule, staged).linked[cuts])
        first = int(loose[-1]) + 1 if len(loose) else 0  # the place from which on each waits for the one before
        for way, taken, size_ in ((ways[0], ours, sent), (ways[1], returns, got)):
            each = taken[0, :-1] / fastest[:-1] + self._leaps(point, size_[cuts])
            way[first + 1 :] = np.cumsum(each[first:])
        return Shape(ours, returns, theirs - returns, ways[0], ways[1], first, waits, most, state, late)

    def _leaps(self, point: Point, sizes: Reals) -> Reals:
        """Seconds of messages of so many bytes from each place to the next."""
        wiring, found = self.costs(1).wiring, []
        for place, size in enumerate(sizes.tolist()):
            bandwidth, latency = self.network.between(place * point.data, (place + 1) * point.data)
            found.append(wiring.message + latency + size / (wiring.efficiency * bandwidth))
        return np.array(found)

    @cached_property
    def state(self) -> Reals:
        """Bytes of trained parameters of each block."""
        graph, (cuts, block), homes = self.graph, numbered(self.graph), homes_of(self.graph)
        found = np.zeros(len(cuts) + 1)
        for parameter in graph.trainable:
            found[block[min(homes.readers.get(parameter.name, [0]))]] += parameter.tensor.size()
        return found

    # Seconds.

    def _passes(self, point: Point, updates: bool) -> Seconds:
        """A round of the rank that has most to do, or of the first one by way of it; if it `updates` all that it has
        beside its passes."""
        shape, m, costs = self.shape(point), point.m, self.costs(1)
        words, late = shape.state.sum(axis=0) / WORD, shape.late.sum(axis=0)
        computed = m * ((shape.forward + shape.backward).sum(axis=0) + late)
        beside = m * costs.copy.element * words * (point.data * point.pipe > 1) + costs.update.element * words * updates
        put_off = np.zeros(point.pipe)
        if point.order is Order.ZERO_BUBBLE:  # W that follow when the last microbatch has left
            put_off[1:] = np.minimum(np.arange(1, point.pipe), m - 1) + 1.0
        inside = (computed - put_off * late) / _of_places(self.peaks, point)
        ends = costs.update.element * words / _of_places(self.peaks, point) * updates
        home = float((shape.ahead + inside + shape.back)[shape.first :].max() + ends[shape.first])
        return max(home, float(((computed + beside) / _of_places(self.speeds, point)).max()))

    def _sent(self, point: Point, shard: Shard, shape: Shape) -> Seconds:
        """What the first place's replicas send each other goes through the slowest link between them."""
        if point.data == 1:
            return 0.0
        bandwidth, _ = self.network.ring
        part = (point.data - 1) / point.data * float(shape.state[:, 0].sum())
        times = ONCE[shard] + point.m * EVERY[shard]
        return times * part / (self.costs(1).wiring.efficiency * float(bandwidth[point.data]))

    # Bytes.

    def _memory(self, point: Point, shard: Shard, bucket: int, shape: Shape) -> float:
        """State, and the most of what is there when the last forward pass before the first backward pass ends, while
        that one runs, and when the first of its gradients are packed."""
        each = self._each(np.array([float(point.data)]), np.array([float(point.pipe)]), np.array([SHARDS.index(shard)]))
        many = self.many(point.order, point.pipe, point.m, point.chunks)
        waiting = (many * shape.kept).sum(axis=0)
        state, whole = shape.state[-1], shape.state.sum(axis=0)
        packed = np.minimum(bucket, state) if shard in (GRADIENTS, PARAMETERS) else 0.0
        made = state if point.pipe > 1 and point.m > 1 else np.minimum(bucket, state) * (point.pipe == 1 < point.data)
        gathered = (
            state * (shard is PARAMETERS) * (1 - 1 / point.data) if point.pipe > 1 else packed * (shard is PARAMETERS)
        )
        if point.order is Order.ZERO_BUBBLE:
            ranks = np.arange(point.pipe)  # when the first W begins, the first rank + 1 microbatches wait for theirs
            after = np.minimum(ranks + 1, point.m) * shape.unpaid[0]
            ahead = np.clip(np.minimum(point.pipe, point.m) - 1 - ranks, 0, None) * shape.kept[0]
            top = np.max([waiting + gathered, made + packed, after + ahead], axis=0)
        else:
            begun = waiting - shape.kept[-1]
            top = np.max([waiting + gathered, begun + shape.fullest[-1], begun + made + packed], axis=0)
        found: float = (whole * each + top).max()
        return found


def _many(order: Order, pipe: int, m: int, chunks: int) -> Ints:
    """Microbatches under way when the first backward pass begins, shape [chunks, places]."""
    return np.array([under_way(order, pipe, rank, m, chunks) for rank in range(pipe)]).T


def _times(often: dict[Shard, int], shard: Ints) -> Reals:
    return np.array([float(often[kind]) for kind in SHARDS])[shard]


def _of_places(speeds: Sequence[float], point: Point) -> Reals:
    """Of the fastest replica of each place along the pipe."""
    return np.array([max(speeds[p * point.data : (p + 1) * point.data]) for p in range(point.pipe)])
