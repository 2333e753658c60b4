"""What the fullest device of a grid's points holds at the least, where each is cut as the recipes do: state, what
microbatches under way keep, and one pass."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import numpy as np

from partita.arrays import Ints, Reals
from partita.plan.schedule import Order
from partita.recipes.catalogue import call
from partita.searches.backward_memory import BackwardMemory, alone
from partita.searches.circulation import GRADIENTS, OPTIMIZER, PARAMETERS
from partita.searches.pipes import Pipes, chunk_after, many_under_way
from partita.searches.space import ORDERS, RECOMPUTES, Space, divides
from partita.searches.stage_costs import StageCosts


class PeakBounds:
    """Lower bounds of memory, in bytes; lives for one search."""

    def __init__(self, places: StageCosts) -> None:
        self.graph, self.places, self.many = places.graph, places, cache(many_under_way)
        self.moments = cache(lambda rule: BackwardMemory(places.sections(rule, staged=True)))

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
        size, rule, m = self.places.samples(space, i), RECOMPUTES[pipes.rule[k]], int(pipes.m[k])
        if pipes.pipe == 1:
            plan = call(space.call(i), self.graph, self.places.cluster)
            return [alone(plan, self.places.sections(rule, staged=False).step, size) if plan.sync else 0.0]
        if ORDERS[pipes.schedule[k]] is Order.ZERO_BUBBLE:
            return [0.0] * pipes.pipe  # what of it is late is behind the rest
        edges = [*pipes.starts[k, -1].tolist(), self.places.count]
        return [self.moments(rule).stage(a, b, size, m > 1) for a, b in pairwise(edges)]

    def _memory(self, pipes: Pipes, at: Ints, shard: Ints, bucket: Reals, passes: Reals) -> Reals:
        """State, and the most of what is there when the last forward pass before the first backward pass ends, while
        that one runs (`passes`, shape [points, places], is known of it), and when the first of its gradients are
        packed."""
        pipe, data, m = pipes.pipe, pipes.data[at], pipes.m[at]
        each = self.places.state_factors(data.astype(np.float64), np.full(len(at), float(pipe)), shard)[:, None]
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
