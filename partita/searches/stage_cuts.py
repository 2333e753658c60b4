"""Where a model is cut into 1, 2, .. stages, and what the fullest place along the pipe then has of everything."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Final

import numpy as np

from partita.arrays import Ints, Reals
from partita.cluster.cluster import Cluster
from partita.cost.costs import Costs
from partita.graph.graph import Graph
from partita.plan.schedule import Order
from partita.recipes.balance import blocks_of
from partita.searches.space import SCHEDULES
from partita.searches.tied_parameters import TiedParameter, tied_parameters

COLUMNS: Final = ("fixed", "each", "whole_fixed", "whole_each", "state", "crossing", "tied")


@dataclass(frozen=True)
class StageCuts:
    """The best partition of the blocks into 1, 2, .. stages by time. Of each stage in each partition: seconds of a
    microbatch as `fixed + each * samples` (a device of speed 1), `state` bytes of parameters, `saved` those that
    backward waits for (a sample), `crossing` those that come in (a sample), its first block (`starts`); and the weights
    that blocks share."""

    fixed: tuple[Reals, ...]
    each: tuple[Reals, ...]
    state: tuple[Reals, ...]
    saved: tuple[Reals, ...]
    crossing: tuple[Reals, ...]
    starts: tuple[Ints, ...]
    shared: tuple[TiedParameter, ...]

    @property
    def most(self) -> int:
        """The most stages of any partition."""
        return len(self.fixed)

    @cached_property
    def widest(self) -> Reals:
        """Of each partition the most that crosses between two of its stages."""
        return np.array([column.max() for column in self.crossing])

    @cached_property
    def fullest(self) -> Reals:
        """Of each partition the most that backward waits for in one of its stages, 1 byte or more."""
        return np.array([max(float(kept.max()), 1.0) for kept in self.saved])

    def places(self, pipe: Ints, schedule: Ints) -> dict[str, Reals]:
        """For each point, whose schedule is a place in SCHEDULES, the `fixed` and `each` of the slowest place along the
        pipe, the `whole_` of all places, the fullest one's `state`, the widest `crossing`, and bytes of weights that
        several have (`tied`)."""
        at = schedule * (self.most + 1) + pipe
        return {name: table.take(at) for name, table in zip(COLUMNS, self._places, strict=True)}

    def waiting(self, pipe: Ints, schedule: Ints, microbatches: Ints, minibatch: int) -> Reals:
        """For each point bytes a sample that backward waits for at the fullest place: of all microbatches where the
        pipe fills first, of as many as places follow in the other orders."""
        counts, table = self.table(minibatch)
        found: Reals = table[schedule, pipe, np.searchsorted(counts, microbatches)]
        return found

    @cached_property
    def _places(self) -> Reals:
        """Shape [COLUMNS, schedules, lengths of a pipe]."""
        found = np.zeros((len(COLUMNS), len(SCHEDULES), self.most + 1))
        for schedule, (_, _, chunks) in enumerate(SCHEDULES):
            for pipe in range(1, self.most // chunks + 1):
                found[:, schedule, pipe] = self._place(pipe, chunks)
        return found

    @cached_property
    def table(self) -> Callable[[int], tuple[Ints, Reals]]:
        """minibatch -> numbers of microbatches that divide it; what waits, shape [schedules, lengths of a pipe,
        numbers of microbatches]. Each found once."""
        return cache(self._table)

    def _table(self, minibatch: int) -> tuple[Ints, Reals]:
        counts = np.array([m for m in range(1, minibatch + 1) if minibatch % m == 0])
        found = np.zeros((len(SCHEDULES), self.most + 1, len(counts)))
        for schedule, (_, order, chunks) in enumerate(SCHEDULES):
            for pipe in range(1, self.most // chunks + 1):
                found[schedule, pipe] = self._waiting(pipe, order, chunks, counts)
        return counts, found

    def _waiting(self, pipe: int, order: Order, chunks: int, microbatches: Ints) -> Reals:
        stages = np.arange(pipe * chunks)
        ahead = (chunks - 1) * pipe + 2 * (pipe - 1 - stages % pipe) + 1 if chunks > 1 else pipe - stages
        many = np.minimum(microbatches[:, None] * chunks, ahead) / chunks
        if order is Order.FILL_DRAIN:
            many = microbatches[:, None].astype(np.float64)
        if order is Order.SEQUENTIAL:
            many = np.ones((len(microbatches), 1))
        found: Reals = (self.saved[len(stages) - 1] * many).reshape(-1, chunks, pipe).sum(axis=1).max(axis=1)
        return found

    def _place(self, pipe: int, chunks: int) -> tuple[float, ...]:
        n = pipe * chunks - 1
        fixed, each, state = (
            column[n].reshape(chunks, pipe).sum(axis=0) for column in (self.fixed, self.each, self.state)
        )
        slowest = (fixed + each).argmax()
        tied = 0
        for one in self.shared:
            first, last = np.searchsorted(self.starts[n], (one.first, one.last), side="right")
            tied += one.size * bool((last - first) % pipe)
        return (
            fixed[slowest], each[slowest], fixed.sum(), each.sum(), state.max(), self.crossing[n].max(), tied
        )  # fmt: skip


def cuts_of(graph: Graph, cluster: Cluster, costs: Costs, most: int) -> StageCuts:
    """The partitions of a graph into 1 to `most` stages by costs that cover two sizes or more."""
    low, high = min(costs.sizes), max(costs.sizes)
    small, large = (blocks_of(graph, cluster, costs, size) for size in (low, high))
    one, other = np.array(small.seconds), np.array(large.seconds)
    slope = np.maximum((other - one) / max(high - low, 1), 0.0)
    base = np.maximum(one - slope * low, 0.0)
    saved, crossing = (np.array(column) / high for column in (large.saved, large.crossing))
    starts = [np.array(found) for found in even_cuts(one, min(most, len(one)))]

    def parts(column: Reals) -> tuple[Reals, ...]:
        return tuple(np.add.reduceat(column, found) for found in starts)

    state = np.array(large.state, np.float64)
    sums = (parts(base), parts(slope), parts(state), parts(saved))
    return StageCuts(*sums, tuple(crossing[found] for found in starts), tuple(starts), tied_parameters(graph))


def even_cuts(seconds: Reals, most: int) -> list[list[int]]:
    """The first blocks of 1, 2, .. `most` contiguous runs with the smallest largest sum (PP-10), all in one pass."""
    total = np.concatenate([[0.0], np.cumsum(seconds)])
    count = len(seconds)
    lengths = np.where(np.tri(count + 1, dtype=bool), np.inf, total[None, :] - total[:, None])
    best, backs, found = np.full(count + 1, np.inf), [], []
    best[0] = 0.0
    for _ in range(most):
        worst = np.maximum(best[:, None], lengths)
        backs.append(worst.argmin(axis=0))
        best = worst[backs[-1], np.arange(count + 1)]
        starts, at = [], count
        for back in reversed(backs):
            at = int(back[at])
            starts.append(at)
        found.append(starts[::-1])
    return found
