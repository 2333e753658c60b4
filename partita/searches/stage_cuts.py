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

MOST_CHUNKS: Final = 64
COLUMNS: Final = ("fixed", "each", "whole_fixed", "whole_each", "state", "crossing")


@dataclass(frozen=True)
class StageCuts:
    """The best partition of the blocks into 1, 2, .. stages by time. Of each stage in each partition: seconds of a
    microbatch as `fixed + each * samples` (a device of speed 1), `state` bytes of parameters, `saved` those that
    backward waits for (a sample), `crossing` those that come in (a sample)."""

    fixed: tuple[Reals, ...]
    each: tuple[Reals, ...]
    state: tuple[Reals, ...]
    saved: tuple[Reals, ...]
    crossing: tuple[Reals, ...]

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

    def places(self, pipe: Ints, chunks: Ints) -> dict[str, Reals]:
        """For each point the `fixed` and `each` of the slowest place along a pipe with `chunks` stages a place, the
        `whole_` of all places, the fullest one's `state`, and the widest `crossing`."""
        pairs, at = np.unique(pipe * MOST_CHUNKS + chunks, return_inverse=True)
        rows = np.array([self.place(*divmod(pair, MOST_CHUNKS)) for pair in pairs.tolist()]).reshape(-1, len(COLUMNS))
        return {name: rows[at.ravel(), k] for k, name in enumerate(COLUMNS)}

    @cached_property
    def place(self) -> Callable[[int, int], tuple[float, ...]]:
        """(pipe, chunks) -> the numbers of COLUMNS, each found once."""
        return cache(self._place)

    @cached_property
    def waiting(self) -> Callable[[int, Order, int, int], float]:
        """(pipe, order, chunks, microbatches) -> bytes a sample that backward waits for at the fullest place: of all
        microbatches where the pipe fills first, of as many as places follow in the others. Each found once."""
        return cache(self._waiting)

    def _waiting(self, pipe: int, order: Order, chunks: int, microbatches: int) -> float:
        kept = self.saved[min(pipe * chunks, self.most) - 1]
        places = np.arange(len(kept)) % pipe
        ahead = (chunks - 1) * pipe + 2 * (pipe - 1 - places) + 1 if chunks > 1 else pipe - places
        many = np.minimum(microbatches * chunks, ahead) / chunks
        if order is Order.FILL_DRAIN:
            many = np.full(len(kept), microbatches)
        if order is Order.SEQUENTIAL:
            many = np.ones(len(kept))
        return float(np.bincount(places, kept * many).max())

    def _place(self, pipe: int, chunks: int) -> tuple[float, ...]:
        n = pipe * chunks - 1
        fixed, each, state = (
            column[n].reshape(chunks, pipe).sum(axis=0) for column in (self.fixed, self.each, self.state)
        )
        slowest = (fixed + each).argmax()
        return (
            fixed[slowest], each[slowest], fixed.sum(), each.sum(), state.max(), self.crossing[n].max()
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
    return StageCuts(parts(base), parts(slope), parts(state), parts(saved), tuple(crossing[found] for found in starts))


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
