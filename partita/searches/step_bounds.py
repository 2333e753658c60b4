"""What a step of a grid's points takes at the least on the event clock, where each is cut as the recipes do.

rank 0   F F F . . . . . B B B U     a round of rank r: the first microbatch's way to it, all of its own passes, the
rank r   . . F F F B B B . . . .     last one's way back; nobody's passes overlap, and rank 0 begins the next round
         way |-- own --| way back    after that
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import numpy as np

from partita.arrays import Ints, Reals
from partita.cost.touch import NOTHING, Touch
from partita.lowering.schedules import ROWS
from partita.plan.memory import Shard
from partita.plan.schedule import Order
from partita.searches.circulation import GRADIENTS, OPTIMIZER, PARAMETERS, rounds_of_bytes
from partita.searches.gathering import Gathers
from partita.searches.link_speeds import with_burst
from partita.searches.pipes import Pipes
from partita.searches.rounds import StageTimes, round_of
from partita.searches.space import ORDERS, SHARDS, Space
from partita.searches.stage_costs import StageCosts
from partita.units import Seconds


class StepBounds:
    """Lower bounds of steps, in seconds; lives for one search."""

    def __init__(self, places: StageCosts) -> None:
        self.graph, self.places, self.gathers = places.graph, places, Gathers(places.graph, places.link_speeds)
        self.row = cache(lambda order, *place: ROWS[order](*place))

    def seconds(self, space: Space, *, closer: bool = False) -> Reals:
        """Seconds that no step of a point takes less than; if `closer`, also by way of all passes in their order, point
        by point."""
        found, shard, bucket = np.zeros(len(space)), space.column("shard"), space.buckets
        often = rounds_of_bytes(space)
        for some, at, pipes in self.places.pipes(space):
            kinds = shard[some]
            # Of a place's state, and of what no other place has, what a rank sends to its like in one round of a ring.
            once = ((pipes.data - 1) / pipes.data)[:, None] / pipes.hardware.width
            part, own = (once * one.sum(axis=1) for one in (pipes.state, pipes.own))
            passes = np.array([self._passes(pipes, part, updates) for updates in (False, True)])
            whole = (kinds == 0).astype(np.int64)
            sent = np.array([own.max(axis=1), (pipes.hardware.light * own).max(axis=1)])
            found[some] = np.maximum(passes[whole, at], with_burst(often[some] * sent[whole, at], pipes.saved))
            if closer and pipes.pipe > 1:
                found[some] = np.maximum(found[some], self._in_order(pipes.each(at), part[at], kinds, bucket[some]))
        return found

    def computing(self, space: Space) -> Reals:
        """Seconds that the passes of a point's busiest place take, whatever it sends."""
        found = np.zeros(len(space))
        for some, at, pipes in self.places.pipes(space):
            each = (pipes.forward + pipes.backward + pipes.late).sum(axis=1)
            found[some] = (pipes.m[:, None] * each / pipes.hardware.speeds).max(axis=1)[at]
        return found

    def _in_order(self, pipes: Pipes, part: Reals, shard: Ints, bucket: Ints) -> Reals:
        """A round of each point's first place, by way of all passes in their order, and what follows them."""
        found = np.zeros(len(shard))
        copy, add = self.places.costs(1).copy, self.places.costs(1).add
        packs = np.array([self._packed(pipes, copy.least(add)), self._packed(pipes, add)])
        steps = self._steps(pipes) / pipes.hardware.peaks
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
        seconds = {kind: (one / pipes.hardware.peaks[i]).ravel().tolist() for kind, one in took.items()}
        kept = shard in (Shard.NONE, OPTIMIZER)  # else each bucket is gone when the next is packed
        added, pack = packs[int(kept)], costs.add if kept and m > 1 else costs.copy.least(costs.add)
        first, others = (
            {kind: ((kind == packed) * each / pipes.hardware.peaks[i]).ravel().tolist() for kind in took}
            for each in (packs[0], added)
        )
        edges = [*pipes.starts[i].ravel().tolist(), self.places.count]
        cut = packed == "B" and pipes.data[i] > 1  # where a bucket is complete, which replicas wait for
        byte = cut * pack.element / self.graph.item
        peaks = np.tile(pipes.hardware.peaks[i], pipes.chunks).tolist()
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
        near = pipes.hardware
        waits, often = (near.whole, 2 * near.light) if whole else (near.halves, np.array(2.0))
        return waits + with_burst(often * part, pipes.saved)

    def _passes(self, pipes: Pipes, part: Reals, updates: bool) -> Reals:
        """A round of the rank that has most to do, or of the first one by way of it; if it `updates` all that it has
        beside its passes. `part` is the seconds in which replicas scatter or gather all that they have once.

        place    |- ahead -|-- inside --|- back -|- after + steps -|     home, by the way through each place
                                   |-- last -----|-- rounds -------|     sent: sums begin with the last microbatch's
                           |------------ own ------------|               pass; and what a place computes in all
        """
        m, peaks, packs = pipes.m[:, None], pipes.hardware.peaks, self._packs(pipes)
        each = (pipes.forward + pipes.backward).sum(axis=1) + pipes.late.sum(axis=1)
        computed, steps = m * (each + packs.sum(axis=1)), self._steps(pipes) * updates
        after = self._after(pipes, packs)
        inside = (computed - after) / peaks
        place = np.arange(pipes.pipe)
        ways = np.where(place >= pipes.first[:, None], pipes.ahead + inside + pipes.back, 0.0)
        # Sums of a pipe's first place end before any forward pass of the next round. Of one that has several stages,
        # only its own way is known to be over when they begin.
        through = ways if pipes.chunks == 1 else np.where(place == pipes.first[:, None], inside, 0.0)
        rounds = self._rounds(pipes, part, updates) * (pipes.data > 1)[:, None]
        sent = through.max(axis=1)[:, None] - self._last(pipes, each, packs, updates) / peaks + rounds
        home = np.maximum(ways.max(axis=1)[:, None] + (after + steps) / peaks, sent)
        own = (computed + steps) / pipes.hardware.speeds
        found: Reals = np.maximum(np.take_along_axis(home, pipes.first[:, None], 1)[:, 0], own.max(axis=1))
        return found

    def _after(self, pipes: Pipes, packs: Reals) -> Reals:
        """Core-seconds that follow at each place when the last microbatch has left: packing what it leaves last and, in
        a zero-bubble order, the W of as many microbatches as are put off (Qi et al., ICLR 2024)."""
        zero, late = pipes.ordered(Order.ZERO_BUBBLE)[:, None], pipes.late.sum(axis=1)
        many = np.where(zero, np.minimum(np.arange(pipes.pipe), pipes.m[:, None] - 1) + 1.0, 1.0)
        found: Reals = many * (late * zero + packs[:, 0])
        return found

    def _last(self, pipes: Pipes, each: Reals, packs: Reals, updates: bool) -> Reals:
        """Core-seconds at each place, at the end of its passes, beside which sums may be on their way already: the last
        microbatch's backward pass, of one device all of it (`each`). Of several chunks all but the first one's
        gradients may have left before; and if weights are not updated but gathered, those of the last chunk may come
        beside forward passes of those before."""
        if pipes.pipe == 1:
            return each
        if pipes.chunks == 1:
            return np.asarray(pipes.backward.sum(axis=1))
        last: Reals = pipes.backward[:, -1] + pipes.pipe * (pipes.backward[:, :-1].sum(axis=1) + packs.sum(axis=1))
        return last if updates else last + pipes.pipe * pipes.forward[:, :-1].sum(axis=1)
