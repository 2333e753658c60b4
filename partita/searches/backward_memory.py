"""What is there while each operator of one backward pass runs: closer bounds of memory, of one point at a time.

stage     F .. F B0 B1 B2 P     all that its passes keep and all gradients until they are packed, where another
                                microbatch goes on with them
alone     B0 P0 B1 P1 B2 P2     weights from their first reader in a pass to the last one; and beside each pass the next
wire      G1 Z0 G2 Z1 --        weights (G), unless the wire is late: then what was packed before (Z) is there still
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from partita.arrays import Flags, Ints, Reals
from partita.cost.lifetimes import lifetimes_of
from partita.graph.graph import Graph
from partita.graph.operator import Ref
from partita.graph.recompute import AGAIN
from partita.lowering.layout import bucket_ends, buckets_of
from partita.lowering.readers import parameter_readers
from partita.lowering.shards import unsliced
from partita.plan.memory import Shard
from partita.plan.plan import Plan
from partita.program.layout import Bucket
from partita.searches.sections import Sections, size_of
from partita.searches.tied_parameters import tied_parameters
from partita.units import Bytes


@dataclass(frozen=True, eq=False)
class BackwardMemory:
    """The values of a step under a rule, for stages of any blocks."""

    sections: Sections

    @cached_property
    def values(self) -> tuple[Ints, Reals, Reals]:
        """Of every value that its block makes wherever a stage is cut: (block, maker) shape [2, values]; bytes, a
        sample's and the rest; and whether it is a gradient, which stays. A copy counts as made by what needs it."""
        s, lifetimes = self.sections, self.sections.lifetimes
        roots = self._roots
        made = [self._made(lifetimes.made[root]) for root in roots]
        block = s.block[[lifetimes.made[root] for root in roots]]
        sizes = np.array([size_of(s.step, root) for root in roots], np.float64).reshape(-1, 2).T
        final = np.array([root in lifetimes.gradients for root in roots], np.float64)
        return np.array([block, made], np.int64), sizes, final

    @cached_property
    def _roots(self) -> list[Ref]:
        tied, lifetimes = {one.name for one in tied_parameters(self.sections.graph)}, self.sections.lifetimes
        shared = {lifetimes.root.get(ref) for name, ref in self.sections.step.gradients if name in tied}
        return [root for root, made in lifetimes.made.items() if self.sections.in_any_cut[made] and root not in shared]

    def _made(self, at: int) -> int:
        return self._needed.get(self.sections.step.operators[at].name, at) if at >= self._end else at

    @property
    def _end(self) -> int:
        return self.sections.step.forward_length

    @cached_property
    def _needed(self) -> dict[str, int]:
        """Copy -> the first operator that its block computes it again for."""
        step, block, found = self.sections.step, self.sections.block.tolist(), dict[str, int]()
        for i in reversed(range(self._end, len(block))):
            operator, at = step.operators[i], i
            if operator.name.endswith(AGAIN):
                if operator.name not in found:
                    continue
                at = found[operator.name]
            for ref in operator.reads():
                if ref.name.endswith(AGAIN) and block[step.index[ref.name]] == block[i]:
                    found[ref.name] = min(found.get(ref.name, at), at)
        return found

    @cached_property
    def readers(self) -> Ints:
        """(value, block, its last reader there), shape [3, .]."""
        s, place = self.sections, {root: k for k, root in enumerate(self._roots)}
        block, last = s.block.tolist(), dict[tuple[int, int], int]()
        for i in np.flatnonzero(s.in_any_cut).tolist():
            for ref in s.step.operators[i].reads():
                k = place.get(s.lifetimes.root.get(ref, ref))
                if k is not None:
                    last[k, block[i]] = i
        return np.array([(*key, i) for key, i in last.items()], np.int64).reshape(-1, 3).T

    def stage(self, first: int, stop: int, size: int, final: bool) -> float:
        """The fullest operator of backward of a stage of the blocks from `first` up to `stop`, with its gradients where
        these are there to the end (`final`)."""
        (block, made), (each, rest), gradients = self.values
        last = np.full(len(made), -1)
        value, reader, at = self.readers
        inside, count = (reader >= first) & (reader < stop), len(self.sections.block)
        np.maximum.at(last, value[inside], at[inside])
        last[gradients > 0] = count - 1 if final else -1
        mine = (block >= first) & (block < stop) & (last >= made)  # what only copies read is gone
        change, amount = np.zeros(count + 1), (each * size + rest)[mine]
        np.add.at(change, made[mine], amount)
        np.add.at(change, last[mine] + 1, -amount)
        here = (self.sections.block >= first) & (self.sections.block < stop) & self._own
        return float(np.cumsum(change)[:-1][here].max(initial=0.0))

    @cached_property
    def _own(self) -> Flags:
        """Operators of backward that are no copies: these are where they stand in every stage."""
        names = [operator.name for operator in self.sections.step.operators]
        return np.array([i >= self._end and not name.endswith(AGAIN) for i, name in enumerate(names)])


def alone(plan: Plan, step: Graph, size: int) -> float:
    """The fullest moment of backward of a step without stages for `size` samples, but for what stays, where gradients
    are packed bucket by bucket."""
    lives, shard, buckets = lifetimes_of(step, size), plan.memory.shard, buckets_of(step, unsliced(plan).sync[0].wire)
    edges, end = bucket_ends(step, buckets), step.forward_length
    during, across = (one.sum(axis=1) for one in lives.live_bytes)
    given = [sum(lives.released(piece.parameter) for piece in one.pieces if piece.last) for one in buckets]
    taken = np.zeros(len(step.operators) + 1)
    np.add.at(taken, list(edges), given)
    running, packing = during - np.cumsum(taken)[:-1], across[list(edges)] - np.cumsum(given) + np.array(given)
    if shard in (Shard.GRADIENTS, Shard.PARAMETERS):
        packing = packing + np.array([bucket.size for bucket in buckets])
    if shard is Shard.PARAMETERS:
        there, crossing, beside = _gathered(step, buckets, edges)
        running, packing = running + there, packing + crossing[list(edges)] + beside
        for (start, stop), more in zip(pairwise((end, *edges)), beside, strict=True):
            running[start + 1 : stop] += more
    return float(max(running[end:].max(), packing.max()))


def _gathered(step: Graph, buckets: tuple[Bucket, ...], edges: tuple[int, ...]) -> tuple[Reals, Reals, Reals]:
    """Bytes of weights that are there during each operator and across each position: of each bucket from its first
    reader in forward or backward to the last one. And what is there besides while each bucket's gradients are made and
    packed: the weights that backward needs next, or the bucket that was packed last, whichever is smaller."""
    read, end = parameter_readers(step), step.forward_length
    rises, falls = np.zeros((2, len(step.operators) + 1))
    needed = dict[int, list[Bytes]]()
    for i, bucket in enumerate(buckets):
        places = sorted({p for piece in bucket.pieces for p in read[piece.parameter]})
        split = bisect_right(places, end - 1)
        for some in filter(None, (places[:split], places[split:])):
            rises[some[0]] += bucket.size
            falls[some[-1] + 1] += bucket.size
        first = bisect_right(edges, places[split]) if len(places) > split else i
        needed.setdefault(first, []).append(bucket.size)
    beside = np.zeros(len(buckets))
    for k in range(1, len(buckets)):
        later = [one for one in needed if one > k]
        beside[k] = min([*needed[min(later)], buckets[k - 1].size]) if later else 0
    there = np.cumsum(rises - falls)
    return there[:-1], there - rises, beside
