"""What the places along a pipe have of a model, for many points of the grid at once, each cut as the recipes cut it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, cached_property
from itertools import pairwise
from typing import TypeVar

import numpy as np

from partita.arrays import Ints, Reals
from partita.cluster.cluster import Cluster
from partita.cost.costs import Costs
from partita.cost.datasheet import datasheet_costs
from partita.cost.launching import slower
from partita.cost.sheets import least
from partita.cost.wiring import CURVED
from partita.graph.graph import Graph
from partita.graph.homes import homes_of
from partita.plan.memory import Recompute
from partita.plan.schedule import Order
from partita.recipes.balance import block_count, blocks_of, by_time, by_time_each, numbered
from partita.recipes.pipeline import bandwidth_between
from partita.searches.circulation import GRADIENTS, OPTIMIZER, PARAMETERS
from partita.searches.link_speeds import LinkSpeeds, with_burst
from partita.searches.pipes import (
    BlockBytes,
    BlockState,
    BlockWork,
    Pipes,
    PlaceHardware,
    StageMemory,
    entries,
    stacked,
)
from partita.searches.section_memory import SectionMemory
from partita.searches.sections import Sections
from partita.searches.space import CHUNKS, RECOMPUTES, SCHEDULES, Space, divides, in_order
from partita.searches.tied_parameters import tied_parameters
from partita.units import Seconds

T = TypeVar("T")


class StageCosts:
    """The places of a grid's points on data sheets' costs, calibrated where some are `measured`, for one search."""

    def __init__(self, graph: Graph, cluster: Cluster, measured: Costs | None = None) -> None:
        self.graph, self.cluster = graph, cluster
        self.batch = graph.minibatch
        self.sheet = cache(lambda size: datasheet_costs(graph, cluster, (size,), measured=measured))
        self.costs = cache(self._costs)
        devices = self.costs(1).cluster.devices
        self.speeds = np.array([device.pace for device in devices])
        self.peaks = np.array([device.speed for device in devices])  # of a quota that was saved up
        self.link_speeds = LinkSpeeds(cluster, self.sheet(1).wiring)
        self.blocks = cache(lambda size: blocks_of(graph, cluster, None, size))
        self.known = cache(lambda rule, staged: Sections(graph, rule, staged))
        self.memory = cache(lambda rule: SectionMemory(self.sections(rule, staged=True)))
        self.work, self.bytes = cache(self._work), cache(self._bytes)
        self.hardware = cache(self._hardware)
        self.cuts = cache(lambda size, *ways: by_time_each(self.blocks(size), *ways))
        self.links = cache(self._links)
        self.starts = cache(self._starts)

    def samples(self, space: Space, i: int) -> int:
        """Samples of a microbatch of a point of a space."""
        data, _, _, m, *_ = map(int, space.shapes[i])
        return self.batch // (data * m)

    def state_factors(self, data: Reals, pipe: Reals, shard: Ints) -> Reals:
        """Bytes of state a byte of parameters, for each point: themselves, gradients where somebody waits for them, the
        optimizer's; each divided among `data` owners where the point shards it."""
        owners = [np.where(divides(shard, kind), data, 1.0) for kind in (PARAMETERS, GRADIENTS, OPTIMIZER)]
        return 1 / owners[0] + (data * pipe > 1) / owners[1] + self.graph.state_factor / owners[2]

    def _costs(self, size: int) -> Costs:
        """Of the side, device or host, that is slower where every device has its part of a minibatch: what no
        instruction takes less than."""
        usual = max(self.batch // self.cluster.size, 1) if self.graph.symbolic else self.graph.batch
        host = self.sheet(size).launching
        found = host if host and slower(self.sheet(usual), usual) is not self.sheet(usual) else self.sheet(size)
        return least(found.behind)

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
        work, edges = self._blocks(lambda kind, size: self.work(kind, staged, size), sizes, rule, starts)
        of = [np.broadcast_to(one, work.forward.shape) for one in (self.state.size, self.state.tensors, self.state.own)]
        forward, backward, returning, again, state, tensors, own = (
            np.add.reduceat(one.ravel(), edges).reshape(len(data), chunks, pipe)
            for one in (work.forward, work.backward, work.returning, work.again, *of)
        )
        forward += np.maximum.reduceat(work.remade.ravel(), edges).reshape(forward.shape)
        for passes in (forward, backward, returning):
            passes += self.costs(1).instruction
        put_off = in_order(schedule, Order.ZERO_BUBBLE)
        again -= work.again.ravel()[np.append(edges[1:], work.again.size) - 1].reshape(again.shape)
        backward += again * ~put_off[:, None, None]  # else some of it may be late
        returning[put_off, 0, 0] = 0.0
        returns = np.where(put_off[:, None, None], returning, backward)
        cuts = starts[:, 1:pipe] - 1
        linked = np.array([self.sections(kind, staged=staged).linked for kind in RECOMPUTES])[rule]
        loose = np.where(np.take_along_axis(linked, cuts, 1), 0, np.arange(1, pipe))
        first = loose.max(axis=1, initial=0)  # the place from which on each waits for the one before
        replicas, at = np.unique(data, return_inverse=True)
        near = entries(stacked([self.hardware(d).first(pipe) for d in replicas.tolist()]), at)
        ways, saved = [], self.link_speeds.saved
        for passes, size in ((forward, work.there), (returns, work.back)):
            sent = with_burst(np.take_along_axis(size, cuts, 1) / near.bandwidth[:, :-1], saved)
            transfers = near.message[:, :-1] + sent
            way = np.zeros((len(data), pipe))
            way[:, 1:] = np.cumsum(passes[:, 0, :-1] / near.peaks[:, :-1] + transfers, axis=1)
            ways.append(np.maximum(way - np.take_along_axis(way, first[:, None], 1), 0.0))
        return Pipes(
            pipe=pipe, chunks=chunks, saved=saved, data=data, m=m, schedule=schedule, rule=rule, first=first,
            starts=starts.reshape(forward.shape), forward=forward, backward=returns, late=backward - returns,
            state=state, tensors=tensors, own=own, ahead=ways[0], back=ways[1], hardware=near,
        )  # fmt: skip

    def transfers(self, pipes: Pipes, i: int) -> tuple[list[Seconds], list[Seconds]]:
        """Seconds of a message from each stage of the i-th point to the next one, and back; -inf where that one does
        not wait for it."""
        data, pipe, rule = int(pipes.data[i]), pipes.pipe, RECOMPUTES[pipes.rule[i]]
        work = self.work(rule, pipe > 1, self.batch // (data * int(pipes.m[i])))
        near = self.hardware(data)
        message = np.append(near.message[: pipe - 1], near.round_message[pipe - 1])  # the last one goes round
        width = np.append(near.bandwidth[: pipe - 1], near.round_bandwidth[pipe - 1])
        cuts = pipes.starts[i].ravel()[1:] - 1
        place, waited = np.arange(len(cuts)) % pipe, self.sections(rule, staged=pipe > 1).linked[cuts]
        there, back = (
            np.where(waited, message[place] + with_burst(size[cuts] / width[place], self.link_speeds.saved), -np.inf)
            for size in (work.there, work.back)
        )
        return there.tolist(), back.tolist()

    def held(self, pipes: Pipes) -> StageMemory:
        """What the points keep."""
        sizes, starts = self.batch // (pipes.data * pipes.m), pipes.starts.reshape(len(pipes.data), -1)
        of, edges = self._blocks(self.bytes, sizes, pipes.rule, starts)
        kept, deferred = (np.add.reduceat(one.ravel(), edges) for one in (of.kept, of.deferred))
        before = np.cumsum(of.kept, axis=1) - of.kept
        grown = np.cumsum(of.ready, axis=1)
        ends = np.append(starts[:, 1:], np.full((len(starts), 1), self.count), axis=1) - 1
        first, last = np.take_along_axis(before, starts, 1).ravel(), np.take_along_axis(grown, ends, 1).ravel()
        fullest = np.maximum.reduceat((before + of.fullest).ravel(), edges) - first
        with_gradients = np.maximum.reduceat((before + of.with_gradients - grown).ravel(), edges) - first + last
        deferred = deferred.reshape(pipes.starts.shape)
        deferred[pipes.ordered(Order.ZERO_BUBBLE), 0, 0] = 0.0
        kept, fullest, with_gradients = (one.reshape(pipes.starts.shape) for one in (kept, fullest, with_gradients))
        return StageMemory(kept=kept, fullest=fullest, with_gradients=with_gradients, deferred=deferred)

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

    def _blocks(self, of: Callable[[Recompute, int], T], sizes: Ints, rule: Ints, starts: Ints) -> tuple[T, Ints]:
        """What is known of each block, shapes [points, blocks], and where stages start in those of all points."""
        keys, at = np.unique(sizes * len(RECOMPUTES) + rule, return_inverse=True)
        pairs = [divmod(key, len(RECOMPUTES)) for key in keys.tolist()]
        blocks = entries(stacked([of(RECOMPUTES[kind], size) for size, kind in pairs]), at)
        return blocks, (starts + self.count * np.arange(len(starts))[:, None]).ravel()

    def sections(self, rule: Recompute, *, staged: bool) -> Sections:
        """The blocks of the step under a rule; all but `full` find the same whether there are stages or not."""
        return self.known(rule, staged or rule is not Recompute.FULL)

    def _work(self, rule: Recompute, staged: bool, size: int) -> BlockWork:
        sections, costs = self.sections(rule, staged=staged), self.costs(size)
        forward, backward = sections.seconds(costs, size)
        there, back = sections.links(size)
        some = sections.input_gradient, sections.for_next
        returning, again = (sections.seconds_of(each, costs, size) for each in some)
        return BlockWork(
            forward=forward, backward=backward, returning=returning, remade=sections.remade_seconds(costs, size),
            again=again, there=there, back=back,
        )  # fmt: skip

    def _bytes(self, rule: Recompute, size: int) -> BlockBytes:
        held = self.memory(rule)  # no rule keeps less without stages
        return BlockBytes(
            kept=held.kept(size), deferred=held.deferred(size), fullest=held.fullest(size),
            with_gradients=held.fullest(size, given=False), ready=held.gradient_bytes[1],
        )  # fmt: skip

    @property
    def count(self) -> int:
        """How many blocks there are."""
        return block_count(self.graph)

    @cached_property
    def state(self) -> BlockState:
        """Of all blocks."""
        graph, (_, block), homes = self.graph, numbered(self.graph), homes_of(self.graph)
        found = np.zeros((3, self.count))
        for parameter in graph.trainable:
            readers, size = homes.readers.get(parameter.name, [0]), parameter.tensor.size()
            found[:, block[min(readers)]] += size, 1, size * (len(set(block[readers].tolist())) == 1)
        return BlockState(size=found[0], tensors=found[1], own=found[2])

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

    def _hardware(self, data: int) -> PlaceHardware:
        """Of each place that pipes of `data` replicas may have."""
        edges = np.arange(0, self.most(data) * data, data)
        stop = len(edges) * data
        speeds, peaks = (np.maximum.reduceat(each[:stop], edges) for each in (self.speeds, self.peaks))
        wiring = self.costs(1).wiring
        hops, rounds, none = self.link_speeds.hops(data), self.link_speeds.rounds(data), (np.inf, 0.0)
        bandwidth, latency = (np.append(some[: len(edges) - 1], one) for some, one in zip(hops, none, strict=True))
        wide, late = (np.append(one, some[: len(edges) - 1]) for some, one in zip(rounds, none, strict=True))
        inside = self.link_speeds.rings(data)[0][: len(edges)]
        circles = [self.link_speeds.circle(data, edge) for edge in edges.tolist()]
        waits, parts = np.array([[wiring.least(circle, kind) for circle in circles] for kind in CURVED]).transpose(
            2, 0, 1
        )
        return PlaceHardware(
            speeds=speeds, peaks=peaks, message=wiring.crossing + latency, bandwidth=bandwidth,
            round_message=wiring.crossing + late, round_bandwidth=wide, width=inside,
            whole=waits[0], halves=waits[1] + waits[2], light=np.minimum(parts[0], 1.0),
        )  # fmt: skip

    def most(self, data: int) -> int:
        """Stages of the longest pipe of `data` replicas."""
        return min(self.cluster.size // data, self.count)
