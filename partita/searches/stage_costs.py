"""What the places along a pipe have of a model, for many points of the grid at once, each cut as the recipes cut it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import cache, cached_property
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from partita.cluster.cluster import Cluster
from partita.cost.costs import Costs
from partita.cost.datasheet import datasheet_costs
from partita.cost.launching import slower
from partita.graph.graph import Graph
from partita.graph.homes import homes_of
from partita.plan.memory import Recompute
from partita.plan.schedule import Order
from partita.program.space import Kind
from partita.recipes.balance import blocks_of, by_time, by_time_each, numbered
from partita.recipes.pipeline import bandwidth_between
from partita.searches.link_speeds import LinkSpeeds
from partita.searches.sections import Sections
from partita.searches.space import RECOMPUTES, SCHEDULES, Space
from partita.searches.tied_parameters import tied_parameters
from partita.units import Seconds

Reals = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]
CHUNKS: Final = np.array([chunks for _, _, chunks in SCHEDULES])
ORDERS: Final = tuple(order for _, order, _ in SCHEDULES)
SUMS: Final = (Kind.ALL_REDUCE, Kind.REDUCE_SCATTER, Kind.ALL_GATHER)
ALIKE: Final = ("pipe", "chunks")  # of all points whose pipes are found together


@dataclass(frozen=True, eq=False)
class Pipes:
    """Points whose pipes have `pipe` places of `chunks` stages each; entry k of `data`, `m` (microbatches), `schedule`
    and `rule` (places in SCHEDULES and RECOMPUTES) is the k-th point's.

    Shape [points, chunks, places]: the first block of each stage; core-seconds of a microbatch's passes, `late` those
    of backward that no other place waits for; bytes of parameters, how many `tensors` they are, and bytes of those that
    are the place's `own`, wherever it is cut. Shape [points, places]: the `speeds` of the fastest replicas, and the
    `peaks` of those that have rested; `ahead` and `back`, seconds of a microbatch's way through all places from the
    `first` to each one, forward and home; bytes a second and seconds of `way` between replicas that are next to each
    other, the `machines` that they are on, the least seconds that a sum of theirs waits, `whole` or as its two
    `halves`, and the least part of a ring's bytes that it carries (`light`).
    """

    pipe: int
    chunks: int
    data: Ints
    m: Ints
    schedule: Ints
    rule: Ints
    starts: Ints
    forward: Reals
    backward: Reals
    late: Reals
    state: Reals
    tensors: Reals
    own: Reals
    speeds: Reals
    peaks: Reals
    ahead: Reals
    back: Reals
    width: Reals
    way: Reals
    machines: Reals
    whole: Reals
    halves: Reals
    light: Reals
    first: Ints

    def each(self, at: Ints) -> Pipes:
        """Those of these entries, in this order."""
        return replace(self, **{one.name: getattr(self, one.name)[at] for one in fields(self) if one.name not in ALIKE})

    def ordered(self, order: Order) -> Flags:
        """The points whose passes are in an order."""
        found: Flags = np.array([each is order for each in ORDERS])[self.schedule]
        return found


@dataclass(frozen=True, eq=False)
class StageMemory:
    """Bytes of a microbatch, shape [points, chunks, places]: that wait for backward, that the fullest pass needs, the
    same with gradients that nobody takes before it ends, and `deferred` those that wait for what is late."""

    kept: Reals
    fullest: Reals
    with_gradients: Reals
    deferred: Reals


class StageCosts:
    """The places of a grid's points on data sheets' costs, calibrated where some are `measured`, for one search."""

    def __init__(self, graph: Graph, cluster: Cluster, measured: Costs | None = None) -> None:
        self.graph, self.cluster = graph, cluster
        self.batch = graph.global_batch or graph.batch
        self.speeds = np.array([device.pace for device in cluster.devices])
        self.peaks = np.array([device.speed for device in cluster.devices])  # of a quota that was saved up
        self.sheet = cache(lambda size: datasheet_costs(graph, cluster, (size,), measured=measured))
        self.costs = cache(self._costs)
        self.link_speeds = LinkSpeeds(cluster, self.sheet(1).wiring)
        self.blocks = cache(lambda size: blocks_of(graph, cluster, None, size))
        self.known = cache(lambda rule, staged: Sections(graph, rule, staged))
        self.work, self.bytes = cache(self._work), cache(self._bytes)
        self.neighbours = cache(self._neighbours)
        self.cuts = cache(lambda size, *ways: by_time_each(self.blocks(size), *ways))
        self.links = cache(self._links)
        self.starts = cache(self._starts)

    def _costs(self, size: int) -> Costs:
        """Of the side, device or host, that is slower where every device has its part of a minibatch."""
        usual = max(self.batch // self.cluster.size, 1) if self.graph.symbolic else self.graph.batch
        host = self.sheet(size).launching
        return host if host and slower(self.sheet(usual), usual) is not self.sheet(usual) else self.sheet(size)

    def pipes(self, space: Space) -> Iterator[tuple[Ints, Ints, Pipes]]:
        """(points, the entry of each one in the pipes, the pipes) by the length of pipes and their chunks."""
        data, pipe, schedule, m, rule = (
            space.column(name) for name in ("data", "pipe", "schedule", "microbatches", "recompute")
        )
        lengths = pipe * (CHUNKS.max() + 1) + CHUNKS[schedule]
        codes = ((data * len(SCHEDULES) + schedule) * (self.batch + 1) + m) * len(RECOMPUTES) + rule
        order = np.lexsort((codes, lengths))
        for some in np.split(order, np.flatnonzero(np.diff(lengths[order])) + 1):
            if len(some):
                _, first, at = np.unique(codes[some], return_index=True, return_inverse=True)
                one = some[first]
                chunks = int(CHUNKS[schedule[one[0]]])
                yield some, at, self._pipes(int(pipe[one[0]]), chunks, data[one], m[one], schedule[one], rule[one])

    def _pipes(self, pipe: int, chunks: int, data: Ints, m: Ints, schedule: Ints, rule: Ints) -> Pipes:
        sizes, staged = self.batch // (data * m), pipe > 1
        starts = np.array(
            [self.starts(d, size, pipe, chunks) for d, size in zip(data.tolist(), sizes.tolist(), strict=True)]
        )
        tables, edges = self._tables(self.work, sizes, rule, staged, starts)
        summed = np.add.reduceat(np.moveaxis(tables[:, :6], 1, 0).reshape(6, -1), edges, axis=1)
        forward, backward, returning, state, tensors, own = summed.reshape(6, len(data), chunks, pipe)
        forward += np.maximum.reduceat(tables[:, 6].ravel(), edges).reshape(forward.shape)
        for passes in (forward, backward, returning):
            passes += self.costs(1).instruction
        put_off = np.array([order is Order.ZERO_BUBBLE for order in ORDERS])[schedule]
        returning[put_off, 0, 0] = 0.0
        returns = np.where(put_off[:, None, None], returning, backward)
        cuts = starts[:, 1:pipe] - 1
        linked = np.array([self.sections(kind, staged).linked for kind in RECOMPUTES])[rule]
        loose = np.where(np.take_along_axis(linked, cuts, 1), 0, np.arange(1, pipe))
        first = loose.max(axis=1, initial=0)  # the place from which on each waits for the one before
        places = [self.neighbours(d) for d in data.tolist()]
        speeds, peaks, message, width, *around = (np.array([one[k][:pipe] for one in places]) for k in range(10))
        ring, way_there, machines, whole, halves, light = around
        ways = []
        for passes, size in ((forward, tables[:, 7]), (returns, tables[:, 8])):
            transfers = message[:, : pipe - 1] + np.take_along_axis(size, cuts, 1) / width[:, : pipe - 1]
            way = np.zeros((len(data), pipe))
            way[:, 1:] = np.cumsum(passes[:, 0, :-1] / peaks[:, :-1] + transfers, axis=1)
            ways.append(np.maximum(way - np.take_along_axis(way, first[:, None], 1), 0.0))
        ahead, back = ways
        return Pipes(
            pipe, chunks, data, m, schedule, rule, starts.reshape(forward.shape), forward, returns, backward - returns,
            state, tensors, own, speeds, peaks, ahead, back, ring, way_there,
            machines, whole, halves, light, first,
        )  # fmt: skip

    def transfers(self, pipes: Pipes, i: int) -> tuple[list[Seconds], list[Seconds]]:
        """Seconds of a message from each stage of the i-th point to the next one, and back; -inf where that one does
        not wait for it."""
        data, pipe, rule = int(pipes.data[i]), pipes.pipe, RECOMPUTES[pipes.rule[i]]
        work = self.work(rule, pipe > 1, self.batch // (data * int(pipes.m[i])))
        _, _, message, width, *_ = self.neighbours(data)
        message = np.append(message[: pipe - 1], self.costs(1).wiring.crossing)  # the last one goes round
        width = np.append(width[: pipe - 1], self.links(data)[2][pipe - 1])
        cuts = pipes.starts[i].ravel()[1:] - 1
        place, waited = np.arange(len(cuts)) % pipe, self.sections(rule, pipe > 1).linked[cuts]
        there, back = (np.where(waited, message[place] + size[cuts] / width[place], -np.inf) for size in work[7:9])
        return there.tolist(), back.tolist()

    def held(self, pipes: Pipes) -> StageMemory:
        """What the points keep."""
        sizes, starts = self.batch // (pipes.data * pipes.m), pipes.starts.reshape(len(pipes.data), -1)
        tables, edges = self._tables(self.bytes, sizes, pipes.rule, pipes.pipe > 1, starts)
        kept, deferred = np.add.reduceat(np.moveaxis(tables[:, :2], 1, 0).reshape(2, -1), edges, axis=1)
        before = np.cumsum(tables[:, 0], axis=1) - tables[:, 0]
        grown = np.cumsum(tables[:, 4], axis=1)
        ends = np.append(starts[:, 1:], np.full((len(starts), 1), self.count), axis=1) - 1
        first, last = np.take_along_axis(before, starts, 1).ravel(), np.take_along_axis(grown, ends, 1).ravel()
        fullest = np.maximum.reduceat((before + tables[:, 2]).ravel(), edges) - first
        with_gradients = np.maximum.reduceat((before + tables[:, 3] - grown).ravel(), edges) - first + last
        deferred = deferred.reshape(pipes.starts.shape)
        deferred[pipes.ordered(Order.ZERO_BUBBLE), 0, 0] = 0.0
        kept, fullest, with_gradients = (one.reshape(pipes.starts.shape) for one in (kept, fullest, with_gradients))
        return StageMemory(kept, fullest, with_gradients, deferred)

    def tied(self, pipes: Pipes) -> tuple[Reals, Reals]:
        """Bytes of parameters that other stages hold too, shape [points, chunks, places]: those counted in `state`, and
        those that are not, since a stage before has them as well."""
        starts = pipes.starts.reshape(len(pipes.data), -1)
        found = np.zeros((2, *starts.shape))
        for one in tied_parameters(self.graph):
            first, last = ((starts <= block).sum(axis=1) - 1 for block in (one.first, one.last))
            apart, point = np.where(first < last, float(one.size), 0.0), np.arange(len(starts))
            found[0, point, first] += apart
            found[1, point, last] += np.where((last - first) % pipes.pipe == 0, 0.0, apart)
        return found[0].reshape(pipes.starts.shape), found[1].reshape(pipes.starts.shape)

    def _tables(
        self, of: Callable[[Recompute, bool, int], Reals], sizes: Ints, rule: Ints, staged: bool, starts: Ints
    ) -> tuple[Reals, Ints]:
        """What is known of each block, shape [points, ., blocks], and where stages start in those of all points."""
        keys, at = np.unique(sizes * len(RECOMPUTES) + rule, return_inverse=True)
        pairs = [divmod(key, len(RECOMPUTES)) for key in keys.tolist()]
        tables = np.array([of(RECOMPUTES[kind], staged, size) for size, kind in pairs])[at]
        return tables, (starts + self.count * np.arange(len(starts))[:, None]).ravel()

    def sections(self, rule: Recompute, staged: bool) -> Sections:
        """The blocks of the step under a rule; all but `full` find the same whether there are stages or not."""
        return self.known(rule, staged or rule is not Recompute.FULL)

    def _work(self, rule: Recompute, staged: bool, size: int) -> Reals:
        """Of each block: seconds of forward, backward, what of that returns; of parameters bytes, number and own bytes;
        seconds of what every stage makes for itself; bytes of messages to the next block and from it."""
        sections, costs = self.sections(rule, staged), self.costs(size)
        return np.array([
            *sections.seconds(costs, size), sections.input_gradient_seconds(costs, size), *self.state,
            sections.remade_seconds(costs, size), *sections.links(size),
        ])  # fmt: skip

    def _bytes(self, rule: Recompute, staged: bool, size: int) -> Reals:
        """Of each block: bytes kept, that wait for what is put off, of the fullest pass without and with gradients, and
        of gradients that are there when that of the block before begins."""
        held = self.sections(rule, True)  # no rule keeps less without stages
        passes = held.fullest(size), held.fullest(size, given=False)
        return np.array([held.kept(size), held.deferred(size), *passes, held.gradient_bytes[1]])

    @property
    def count(self) -> int:
        """Blocks."""
        return len(numbered(self.graph)[0]) + 1

    @cached_property
    def state(self) -> Reals:
        """Bytes of trained parameters of each block, how many they are, and bytes of those that no other reads."""
        graph, (_, block), homes = self.graph, numbered(self.graph), homes_of(self.graph)
        found = np.zeros((3, self.count))
        for parameter in graph.trainable:
            readers, size = homes.readers.get(parameter.name, [0]), parameter.tensor.size()
            found[:, block[min(readers)]] += size, 1, size * (len(set(block[readers].tolist())) == 1)
        return found

    # Where a point is cut, as the recipes do.

    def _starts(self, data: int, size: int, pipe: int, chunks: int) -> Ints:
        """The first block of each stage."""
        if pipe == 1:
            return np.zeros(1, np.int64)
        speeds, widths, around = self.links(data)
        lap = (*widths[: pipe - 1], around[pipe - 1])
        if chunks == 1 or len({*speeds[:pipe]}) == len({*lap}) == 1:
            alike = len({*speeds}) == len({*widths}) == 1 or chunks > 1
            ways = (speeds[:1] * self.count, widths[:1] * (self.count - 1)) if alike else (speeds, widths)
            return np.array(self.cuts(size, *ways)[pipe * chunks - 1])
        return np.array(by_time(self.blocks(size), speeds[:pipe] * chunks, (lap * chunks)[:-1]))

    def _links(self, data: int) -> tuple[tuple[float, ...], ...]:
        """Of each place that pipes of `data` replicas may have the speed of the slowest; bytes a second between the
        first replicas of each one and the next, and of each one and the first place."""
        edges = range(0, self.most(data) * data, data)
        speeds = tuple(min(self.speeds[edge : edge + data].tolist()) for edge in edges)
        widths = tuple(bandwidth_between(self.cluster, one, other) for one, other in pairwise(edges))
        return speeds, widths, tuple(bandwidth_between(self.cluster, edge, 0) for edge in edges)

    def _neighbours(self, data: int) -> tuple[Reals, ...]:
        """Of each such place the speed of the fastest replica, its peak, seconds before the first byte of a message to
        the next place and its bytes a second (from the last one none); of messages among its replicas bytes a
        second, the longest way, and what else pipes have of them."""
        edges = np.arange(0, self.most(data) * data, data)
        stop = len(edges) * data
        fastest = [np.maximum.reduceat(each[:stop], edges) for each in (self.speeds, self.peaks)]
        wiring = self.costs(1).wiring
        bandwidth, latency = (
            np.append(column[: len(edges) - 1], last)
            for column, last in zip(self.link_speeds.hops(data), (np.inf, 0.0), strict=True)
        )
        inside = self.link_speeds.rings(data)[0][: len(edges)]
        circles = [self.link_speeds.circle(data, edge) for edge in edges.tolist()]
        waits, parts = np.array([[wiring.least(circle, kind) for circle in circles] for kind in SUMS]).transpose(
            2, 0, 1
        )
        return (
            fastest[0], fastest[1], wiring.crossing + latency, bandwidth, inside,
            *np.array([(circle.way, circle.machines) for circle in circles], np.float64).T,
            waits[0], waits[1] + waits[2], np.minimum(parts[0], 1.0),
        )  # fmt: skip

    def most(self, data: int) -> int:
        """Stages of the longest pipe of `data` replicas."""
        return min(self.cluster.size // data, self.count)
