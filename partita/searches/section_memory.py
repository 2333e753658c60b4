"""What each block of a model keeps at the least, whatever stage it goes to, by rule of recomputation.

block        0     1     2              kept: what waits from a block's forward to its backward, made there or sent
forward     a b   c d   e f             deferred: what its W still reads when all that others wait for is done
backward    A B   C D   E F             fullest: what is there while the fullest operator of its backward runs
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from partita.arrays import Ints, Reals
from partita.graph.operator import Ref
from partita.searches.sections import Sections, by_block, size_of
from partita.searches.tied_parameters import tied_parameters


@dataclass(frozen=True, eq=False)
class SectionMemory:
    """Bytes of the values of `sections`, block by block: `each * samples + rest`."""

    sections: Sections

    @cached_property
    def intervals(self) -> tuple[Ints, Ints, Ints, Reals, Reals]:
        """Of what is alive in a block: its number, the operators from which and up to which, bytes as `each * samples +
        rest`. What a block is sent is there from its first operator on."""
        first = np.full(self.sections.count, len(self.sections.block))
        np.minimum.at(first, self.sections.block, np.arange(len(self.sections.block)))
        found = ((b, int(first[b]) if made < 0 else made, last, ref) for b, made, last, ref in self._lives())
        rows = [(b, made, last, *size_of(self.sections.step, ref)) for b, made, last, ref in found]
        block, made, last, each, rest = np.array(rows, np.float64).reshape(-1, 5).T
        return block.astype(np.int64), made.astype(np.int64), last.astype(np.int64), each, rest

    def _lives(self) -> Iterator[tuple[int, int, int, Ref]]:
        """(block, maker, -1: from elsewhere, last reader in the block, the value) of every value but gradients."""
        step, block, end = self.sections.step, self.sections.block.tolist(), self.sections.step.forward_length
        lifetimes = self.sections.lifetimes
        own, sent = dict[Ref, int](), dict[Ref, tuple[int, int, Ref]]()
        for i, operator in enumerate(step.operators):
            for ref in operator.reads():
                root = lifetimes.root.get(ref)
                if root not in lifetimes.made or not self.sections.in_any_cut[i]:
                    continue
                if block[lifetimes.made[root]] == block[i]:
                    own[root] = i
                elif i >= end > lifetimes.made[root] and ref.name in step.index:
                    sent[root] = (block[i], i, ref)
        for root, made in lifetimes.made.items():
            if not self.sections.in_any_cut[made] or root in lifetimes.gradients:
                continue
            if made < end and own.get(root, made) < end and root in sent:
                number, last, ref = sent[root]
                yield number, -1, last, ref
            else:
                yield block[made], made, own.get(root, made), root

    @cached_property
    def live_bytes(self) -> tuple[Ints, Reals, Reals, Ints]:
        """Of every operator in the order of blocks: bytes alive in its block, `each * samples` and the rest; and where
        the operators of each block's backward begin."""
        order = np.lexsort((np.arange(len(self.sections.block)), self.sections.block))
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        _, made, last, each, rest = self.intervals
        found = []
        for amount in (each, rest):
            change = np.zeros(len(order) + 1)
            np.add.at(change, place[made], amount)
            np.add.at(change, place[last] + 1, -amount)
            found.append(np.cumsum(change)[:-1])
        return order, found[0], found[1], np.searchsorted(self.sections.block[order], np.arange(self.sections.count))

    def kept(self, size: int) -> Reals:
        """Bytes of each block that wait from its forward to its backward."""
        each, rest = self._kept
        return each * size + rest

    @cached_property
    def _kept(self) -> tuple[Reals, Reals]:
        number, made, last, each, rest = self.intervals
        end = self.sections.step.forward_length
        waiting = (made < end) & (last >= end)
        each, rest = (by_block(number[waiting], one[waiting], self.sections.count) for one in (each, rest))
        return each, rest

    def deferred(self, size: int) -> Reals:
        """Bytes of each block that `weight_gradient` operators wait with, when all that may not be put off is done."""
        return by_block(self._deferred[0], self._deferred[1] * size + self._deferred[2], self.sections.count)

    @cached_property
    def _deferred(self) -> tuple[Ints, Reals, Reals]:
        s = self.sections
        step, block, end, lifetimes = s.step, s.block.tolist(), s.step.forward_length, s.lifetimes
        held: dict[Ref, int] = {}
        for i in np.flatnonzero(s.weight_gradient).tolist():
            for ref in step.operators[i].reads():
                root = lifetimes.root.get(ref)
                made = lifetimes.made.get(root, -1) if root else -1
                done = made >= 0 and (made < end or s.input_gradient[made])
                there = done and block[made] == block[i] and s.in_any_cut[made]
                if root and there and root not in lifetimes.gradients:
                    held[root] = block[i]
        each, rest = np.array([size_of(step, root) for root in held], np.float64).reshape(-1, 2).T
        return np.array(list(held.values()), np.int64), each, rest

    def fullest(self, size: int, given: bool = True) -> Reals:
        """Bytes of each block while the fullest operator of its backward runs; where another block's backward is under
        way before it, what is kept alone. Unless gradients are `given` away at once, with those that it has made."""
        order, each, rest, starts = self.live_bytes
        made = 0.0 if given else self.gradient_bytes[0]
        alive = np.where(order >= self.sections.step.forward_length, each * size + rest + made, 0.0)
        top = np.repeat(np.maximum.reduceat(alive, starts), np.diff(np.append(starts, len(alive))))
        at = np.minimum.reduceat(np.where(alive == top, np.arange(len(alive)), len(alive)), starts)
        found: Reals = np.where(order[at] < self.previous_backward, alive[at], self.kept(size))
        return np.maximum(found, self.kept(size))

    @cached_property
    def previous_backward(self) -> Ints:
        """Of each block the operator with which backward of any block before it begins."""
        begun = np.full(self.sections.count, len(self.sections.block))
        later = np.flatnonzero(np.arange(len(self.sections.block)) >= self.sections.step.forward_length)
        np.minimum.at(begun, self.sections.block[later], later)
        return np.concatenate([[len(self.sections.block)], np.minimum.accumulate(begun)[:-1]])

    @cached_property
    def gradient_bytes(self) -> tuple[Reals, Reals]:
        """Bytes of gradients that a block has made when each operator in the order of `live_bytes` ends, and of each
        block those that are there before backward of any block before it begins."""
        order, starts = self.live_bytes[0], self.live_bytes[3]
        amount, tied = np.zeros(len(self.sections.block)), {one.name for one in tied_parameters(self.sections.graph)}
        root_of, maker = self.sections.lifetimes.root, self.sections.lifetimes.made
        roots = {root_of[ref] for name, ref in self.sections.step.gradients if name not in tied and ref in root_of}
        for root in roots & self.sections.lifetimes.gradients:
            amount[maker[root]] += self.sections.step.tensor(root).size() * self.sections.in_any_cut[maker[root]]
        total = np.cumsum(amount[order])
        before = np.repeat(total[starts] - amount[order][starts], np.diff(np.append(starts, len(order))))
        early = np.arange(len(self.sections.block)) < self.previous_backward[self.sections.block]
        return total - before, by_block(self.sections.block, amount * early, self.sections.count)
