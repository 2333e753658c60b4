"""Lower bounds: what a point of the grid takes and holds at the least on the event clock, by where it is really cut.

rank 0   F F F . . . . . B B B U     a round of rank r: the first microbatch's way to it, all of its own passes, the
rank r   . . F F F B B B . . . .     last one's way back; nobody's passes overlap, and rank 0 begins the next round
         way |-- own --| way back    after that. What it holds: state, what microbatches under way keep, one pass
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise, product

import numpy as np

from partita.arrays import Ints, Reals
from partita.cluster.cluster import Cluster
from partita.cost.costs import Costs
from partita.cost.touch import NOTHING, Touch
from partita.graph.graph import Graph
from partita.lowering.schedules import ROWS
from partita.plan.memory import Recompute, Shard
from partita.plan.schedule import Order
from partita.recipes.catalogue import call
from partita.searches.backward_memory import BackwardMemory, alone
from partita.searches.circulation import GRADIENTS, OPTIMIZER, PARAMETERS, rounds_of_bytes
from partita.searches.gathering import Gathers
from partita.searches.link_speeds import hastened
from partita.searches.pipes import Pipes, chunk_after, many_under_way
from partita.searches.rounds import StageTimes, round_of
from partita.searches.space import ORDERS, RECOMPUTES, SHARDS, Space, divides
from partita.searches.stage_costs import StageCosts
from partita.units import Seconds


class LowerBounds:
    """The bounds of a grid's points on data sheets' costs, calibrated where some are `measured`, in seconds of a step
    and bytes of the fullest device; lives for one search."""

    def __init__(self, graph: Graph, cluster: Cluster, measured: Costs | None = None) -> None:
        self.graph, self.cluster, self.places = graph, cluster, StageCosts(graph, cluster, measured)
        self.batch, self.many, self.gathers = self.places.batch, cache(many_under_way), Gathers(graph)
        self.row = cache(lambda order, *place: ROWS[order](*place))
        self.moments = cache(lambda rule: BackwardMemory(self.places.sections(rule, staged=True)))

    def size(self, space: Space, i: int) -> int:
        """Samples of a microbatch of a point of a space."""
        data, _, _, m, *_ = map(int, space.shapes[i])
        return self.batch // (data * m)

    def like(self, one: Space) -> tuple[int, ...]:
        """What is the same for points, each a space of its own, that are lowered to the same: no bucket is larger than
        what a stage has alone, or what stages share."""
        pipes = next(found for _, _, found in self.places.pipes(one))
        shared, _ = self.places.tied(pipes)
        most = max(float((pipes.state - shared).max()), float(shared.sum()))
        return *one.shapes[0].tolist(), min(int(one.buckets[0]), int(most))

    # Wherever a point is cut.

    def rough(self, space: Space) -> tuple[Reals, Reals]:
        """Seconds and bytes below which no point of a space is, as if the model could be cut at will.

        On p places that wait for each other, m microbatches of w seconds take w / (1 - (1 - 1/m)^p) at the least: what
        lies before a place, and m times its own, is longest where it is shortest if it is as long everywhere. Blocks
        count from the first on behind which all cuts are linked: with fewer places it would be more.
        """
        data, pipe, m = (space.column(name).astype(np.float64) for name in ("data", "pipe", "microbatches"))
        shard = space.column("shard")
        put_off, round_ = space.ordered(Order.ZERO_BUBBLE), space.ordered(Order.INTERLEAVED)
        price, chained, urgent = self._priced(space)
        even, chained = price * m / pipe, np.where(put_off, urgent, chained)
        total = np.where((pipe > 1) & ~round_, np.maximum(chained / (1 - (1 - 1 / m) ** pipe), even), even)
        sent = (data - 1) / data * self.places.state.own.sum() / pipe * rounds_of_bytes(space)
        counts, at = np.unique(data, return_inverse=True)
        light = np.array([self.places.link_speeds.least_part(int(n)) for n in counts])[at]
        links = self.places.link_speeds
        sent = hastened(sent * np.where(shard == 0, light, 1.0) / links.widest, links.saved)
        seconds: Reals = np.max([total / self.places.peaks.max(), even / self.places.speeds.max(), sent], axis=0)
        return seconds, self.places.state.size.sum() * self._each(data, pipe, shard) / pipe

    def _priced(self, space: Space) -> tuple[Reals, ...]:
        """Core-seconds of a microbatch, those of linked blocks, and those without what may be put off; a sample at its
        cheapest price for as many at once or more (they get no dearer in company)."""
        sizes, at = np.unique(
            self.batch // (space.column("data") * space.column("microbatches")), return_inverse=True
        )  # fmt: skip
        staged, rule = (space.column("pipe") > 1).astype(np.int64), space.column("recompute")
        priced = sizes.tolist() if self.graph.symbolic else [self.graph.batch]
        place = np.searchsorted(priced, sizes).clip(max=len(priced) - 1)
        found = np.zeros((3, 2, len(RECOMPUTES), len(sizes)))
        loose = np.flatnonzero(~self.places.sections(Recompute.NONE, staged=True).linked)
        first = int(loose[-1]) + 1 if len(loose) else 0
        for step, again in product((False, True), range(len(RECOMPUTES))):
            each = [self._of_blocks(RECOMPUTES[again], step, size, first) for size in priced]
            least = np.minimum.accumulate(each[::-1], axis=0)[::-1]
            found[:, int(step), again] = (sizes[:, None] * least[place]).T
        return tuple(table[staged, rule, at.ravel()] for table in found)

    def _of_blocks(self, rule: Recompute, staged: bool, size: int, first: int) -> tuple[float, ...]:
        """Core-seconds a sample, those from block `first` on, and those of them that another block waits for."""
        sections, costs = self.places.sections(rule, staged=staged), self.places.costs(size)
        forward, backward = sections.seconds(costs, size)
        both, urgent = forward + backward, forward + sections.seconds_of(sections.input_gradient, costs, size)
        return both.sum() / size, both[first:].sum() / size, urgent[first:].sum() / size

    def _each(self, data: Reals, pipe: Reals, shard: Ints) -> Reals:
        """Bytes of state a byte of parameters: themselves, gradients where somebody waits for them, the optimizer's."""
        owners = [np.where(divides(shard, kind), data, 1.0) for kind in (PARAMETERS, GRADIENTS, OPTIMIZER)]
        return 1 / owners[0] + (data * pipe > 1) / owners[1] + self.graph.state_factor / owners[2]

    # Where a point is cut, as the recipes do.

    def seconds(self, space: Space, *, closer: bool = False) -> Reals:
        """Seconds that no step of a point takes less than; if `closer`, also by way of all passes in their order, point
        by point."""
        found, shard, bucket = np.zeros(len(space)), space.column("shard"), space.buckets
        often = rounds_of_bytes(space)
        for some, at, pipes in self.places.pipes(space):
            kinds = shard[some]
            # Of a place's state, and of what no other place has, what a rank sends to its like in one round of a ring.
            once = ((pipes.data - 1) / pipes.data)[:, None] / pipes.width
            part, own = (once * one.sum(axis=1) for one in (pipes.state, pipes.own))
            passes = np.array([self._passes(pipes, part, updates) for updates in (False, True)])
            whole = (kinds == 0).astype(np.int64)
            sent = np.array([own.max(axis=1), (pipes.light * own).max(axis=1)])
            found[some] = np.maximum(passes[whole, at], hastened(often[some] * sent[whole, at], pipes.saved))
            if closer and pipes.pipe > 1:
                found[some] = np.maximum(found[some], self._in_order(pipes.each(at), part[at], kinds, bucket[some]))
        return found

    def computing(self, space: Space) -> Reals:
        """Seconds that the passes of a point's busiest place take, whatever it sends."""
        found = np.zeros(len(space))
        for some, at, pipes in self.places.pipes(space):
            each = (pipes.forward + pipes.backward + pipes.late).sum(axis=1)
            found[some] = (pipes.m[:, None] * each / pipes.speeds).max(axis=1)[at]
        return found

    def memory(self, space: Space, *, closer: bool = False) -> Reals:
        """Bytes that some device of a point holds; if `closer`, also while each operator of a backward pass runs, point
        by point."""
        found, shard, bucket = np.zeros(len(space)), space.column("shard"), space.buckets
        for some, at, pipes in self.places.pipes(space):
            passes = np.zeros((1, 1))
            if closer:
                pipes, at = pipes.each(at), np.arange(len(some))
                passes = np.array([self._pass(space, i, pipes, k) for k, i in enumerate(some.tolist())])
            found[some] = self._memory(pipes, at, shard[some], bucket[some].astype(np.float64)[:, None], passes)
        return found

    def _pass(self, space: Space, i: int, pipes: Pipes, k: int) -> list[float]:
        """Of each place, what is there at the fullest moment of the first backward pass, but for what stays: of point
        `i` of a space, the k-th of the pipes."""
        size, rule, m = self.size(space, i), RECOMPUTES[pipes.rule[k]], int(pipes.m[k])
        if pipes.pipe == 1:
            plan = call(space.call(i), self.graph, self.cluster)
            return [alone(plan, self.places.sections(rule, staged=False).step, size) if plan.sync else 0.0]
        if ORDERS[pipes.schedule[k]] is Order.ZERO_BUBBLE:
            return [0.0] * pipes.pipe  # what of it is late is behind the rest
        edges = [*pipes.starts[k, -1].tolist(), self.places.count]
        return [self.moments(rule).stage(a, b, size, m > 1) for a, b in pairwise(edges)]

    def _in_order(self, pipes: Pipes, part: Reals, shard: Ints, bucket: Ints) -> Reals:
        """A round of each point's first place, by way of all passes in their order, and what follows them."""
        found = np.zeros(len(shard))
        copy, add = self.places.costs(1).copy, self.places.costs(1).add
        packs = np.array([self._packed(pipes, copy.least(add)), self._packed(pipes, add)])
        steps = self._steps(pipes) / pipes.peaks
        rounds = [self._rounds(pipes, part, whole) for whole in (False, True)]
        for i, (kind, most) in enumerate(zip(shard.tolist(), bucket.tolist(), strict=True)):
            first, update, tail, sent = int(pipes.first[i]), 0.0 if kind else steps[i, pipes.first[i]], 0.0, 0.0
            begun, over = self._round(pipes, i, packs[:, i], SHARDS[kind], most)
            if pipes.data[i] > 1:
                tail = self._tail(pipes, i, SHARDS[kind], most)
                sent = begun + rounds[not kind][i, first] if pipes.chunks == 1 else 0.0
            found[i] = max(over + max(update, tail), sent)
        return found

    def _round(self, pipes: Pipes, i: int, packs: Reals, shard: Shard, bucket: int) -> tuple[Seconds, Seconds]:
        """`round_of` the i-th point."""
        order, pipe, m, costs = ORDERS[pipes.schedule[i]], pipes.pipe, int(pipes.m[i]), self.places.costs(1)
        rows = [self.row(order, pipe, place, m, pipes.chunks) for place in range(pipe)]
        waits, packed = [[0.0] * len(row) for row in rows], "W" if order is Order.ZERO_BUBBLE else "B"
        if shard is PARAMETERS and packed == "B":
            waits = self.gathers.waits(pipes, i, rows, bucket, self.places.count, costs.wiring, costs.copy)
        elif shard is GRADIENTS and pipes.data[i] > 1:
            waits = self.gathers.crowded(pipes, i, rows, bucket, self.places.count, costs.wiring, costs.copy, packed)
        took = {"F": pipes.forward[i], "B": pipes.backward[i], "W": pipes.late[i]}
        seconds = {kind: (one / pipes.peaks[i]).ravel().tolist() for kind, one in took.items()}
        kept = shard in (Shard.NONE, OPTIMIZER)  # else each bucket is gone when the next is packed
        added, pack = packs[int(kept)], costs.add if kept and m > 1 else costs.copy.least(costs.add)
        first, others = (
            {kind: ((kind == packed) * each / pipes.peaks[i]).ravel().tolist() for kind in took}
            for each in (packs[0], added)
        )
        edges = [*pipes.starts[i].ravel().tolist(), self.places.count]
        cut = packed == "B" and pipes.data[i] > 1  # where a bucket is complete, which replicas wait for
        byte = cut * pack.element / self.graph.item
        peaks = np.tile(pipes.peaks[i], pipes.chunks).tolist()
        early = [
            byte * self.gathers.early(*stage, bucket) / peak for stage, peak in zip(pairwise(edges), peaks, strict=True)
        ]
        taken = StageTimes(seconds, first, others, early, m - 1, *self.places.transfers(pipes, i))
        return round_of(rows, waits, taken, int(pipes.first[i]))

    def _tail(self, pipes: Pipes, i: int, shard: Shard, bucket: int) -> Seconds:
        """Of the first place of the i-th point, between what it packs last and its next forward pass."""
        first = int(pipes.first[i])
        collectives = self.gathers.collectives(pipes, i, first, self.places.costs(1).wiring, NOTHING)
        start, stop = [*pipes.starts[i].ravel().tolist(), self.places.count][first : first + 2]
        return self.gathers.tail(start, stop, bucket, collectives, shard)

    def _packs(self, pipes: Pipes) -> Reals:
        """Core-seconds of packing the gradients of each stage, shape [points, chunks, places]."""
        costs = self.places.costs(1)
        return self._packed(pipes, costs.copy.least(costs.add))

    def _packed(self, pipes: Pipes, pack: Touch) -> Reals:
        several, (_, again) = pipes.data * pipes.pipe > 1, self.places.tied(pipes)
        elements, tensors = (pipes.state + again) / self.graph.item, pipes.tensors + (again > 0)
        return (pack.element * elements + pack.tensor * tensors) * several[:, None, None]

    def _steps(self, pipes: Pipes) -> Reals:
        """Core-seconds of updating all that each place has, shape [points, places]."""
        costs = self.places.costs(1)
        update = costs.update.least(costs.update_unpacked or costs.update)
        words, tensors = (one.sum(axis=1) for one in (pipes.state / self.graph.item, pipes.tensors))
        found: Reals = update.element * words + update.tensor * tensors
        return found

    def _rounds(self, pipes: Pipes, part: Reals, whole: bool) -> Reals:
        """Seconds in which each place sums up what it has once."""
        waits, often = (pipes.whole, 2 * pipes.light) if whole else (pipes.halves, np.array(2.0))
        return waits + hastened(often * part, pipes.saved)

    def _passes(self, pipes: Pipes, part: Reals, updates: bool) -> Reals:
        """A round of the rank that has most to do, or of the first one by way of it; if it `updates` all that it has
        beside its passes. `part` is the seconds in which replicas scatter or gather all that they have once."""
        m, place, late = pipes.m[:, None], np.arange(pipes.pipe), pipes.late.sum(axis=1)
        each, packs = (pipes.forward + pipes.backward).sum(axis=1) + late, self._packs(pipes)
        pack, steps = packs.sum(axis=1), self._steps(pipes) * updates
        # Packs, and W where they are put off, that follow when the last microbatch has left, of what it leaves last; of
        # the first place, before its next round.
        zero = pipes.ordered(Order.ZERO_BUBBLE)[:, None]
        many = np.where(zero, np.minimum(place, m - 1) + 1.0, 1.0)
        after = many * (late * zero + packs[:, 0])
        inside = (m * (each + pack) - after) / pipes.peaks
        ways = np.where(place >= pipes.first[:, None], pipes.ahead + inside + pipes.back, 0.0)
        # What the last microbatch completes travels before the next round: of a pipe's first place all of it before
        # any forward pass, where there is but one place while one goes on.
        last, through = (pipes.backward.sum(axis=1) if pipes.pipe > 1 else each), ways
        if pipes.chunks > 1:
            last = pipes.backward[:, -1] + pipes.pipe * (pipes.backward[:, :-1].sum(axis=1) + pack)
            if not updates:  # weights of the last chunk may come beside forward passes of those before
                last = last + pipes.pipe * pipes.forward[:, :-1].sum(axis=1)
            through = np.where(place == pipes.first[:, None], inside, 0.0)
        rounds = self._rounds(pipes, part, updates) * (pipes.data > 1)[:, None]
        sent = through.max(axis=1)[:, None] - last / pipes.peaks + rounds
        home = np.maximum(ways.max(axis=1)[:, None] + (after + steps) / pipes.peaks, sent)
        own = (m * (each + pack) + steps) / pipes.speeds
        found: Reals = np.maximum(np.take_along_axis(home, pipes.first[:, None], 1)[:, 0], own.max(axis=1))
        return found

    def _memory(self, pipes: Pipes, at: Ints, shard: Ints, bucket: Reals, passes: Reals) -> Reals:
        """State, and the most of what is there when the last forward pass before the first backward pass ends, while
        that one runs (`passes`, shape [points, places], is known of it), and when the first of its gradients are
        packed."""
        pipe, data, m = pipes.pipe, pipes.data[at], pipes.m[at]
        each = self._each(data.astype(np.float64), np.full(len(at), float(pipe)), shard)[:, None]
        many = np.array([
            self.many(ORDERS[kind], pipe, n, pipes.chunks)
            for kind, n in zip(pipes.schedule.tolist(), pipes.m.tolist(), strict=True)
        ])  # fmt: skip
        held = self.places.held(pipes)
        waiting, state, whole = (many * held.kept).sum(axis=1)[at], pipes.state[at, -1], pipes.state.sum(axis=1)[at]
        shared, again = (one[at] for one in self.places.tied(pipes))
        own, divided = (pipes.state[at] - shared), divides(shard, PARAMETERS)[:, None]
        least = np.minimum(bucket, own[:, -1])
        packed = least * divides(shard, GRADIENTS)[:, None]
        begun, fullest = waiting - held.kept[at, -1], held.fullest[at, -1]
        heaviest = np.where((m > 1)[:, None], held.with_gradients[at, -1], fullest)
        if pipe > 1:
            heaviest = np.maximum(heaviest, passes)
            made, gathered = state * (m > 1)[:, None], own[:, -1] * divided
            # The pass after the first backward pass: a bucket of its weights is gathered beside that one.
            after = np.array([chunk_after(pipe, n, pipes.chunks) for n in m.tolist()])
            next_ = np.take_along_axis(own, np.maximum(after, 0)[:, None], 1)[:, 0]
            ahead = np.minimum(bucket, next_) * divided * (after >= 0)
        else:
            made, gathered, ahead = least * (data > 1)[:, None], packed * divided, 0.0 * least
            heaviest = np.maximum(fullest, passes) - gathered
        top = np.max([waiting + gathered, begun + heaviest + gathered, begun + made + packed], axis=0) + ahead
        off = pipes.ordered(Order.ZERO_BUBBLE)[at]
        if off.any():
            place, n = np.arange(pipe), pipes.m[:, None]
            # When the first W begins, the first rank + 1 microbatches wait for theirs.
            deferred = np.minimum(place + 1, n) * held.deferred[:, 0]
            deferred = deferred + np.clip(np.minimum(pipe, n) - 1 - place, 0, None) * held.kept[:, 0]
            top[off] = np.max([waiting + gathered, made + packed, deferred[at]], axis=0)[off]
        found: Reals = (whole * each + self._tied(shard, data, shared.sum(axis=1), again.sum(axis=1)) + top).max(axis=1)
        return found

    def _tied(self, shard: Ints, data: Ints, shared: Reals, again: Reals) -> Reals:
        """Bytes of state, beyond an even part of what is `shared` with later stages: only the optimizer's is divided,
        among them all; and of what is there `again`."""
        owned, optimizer = (1 / data)[:, None], self.graph.state_factor
        kinds = [divides(shard, kind)[:, None] for kind in (PARAMETERS, GRADIENTS, OPTIMIZER)]
        beyond = (1 - owned) * kinds[0] + (1 - owned) * kinds[1] - optimizer * owned * kinds[2]
        found: Reals = shared * beyond + again * (2 + optimizer * ~kinds[2])
        return found
