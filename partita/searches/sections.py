"""What each block of a model takes and keeps at the least, whatever stage it goes to, by rule of recomputation.

block        0     1     2              a value counts in the block of what reads it in backward: whichever stage has
forward     a b   c d   e f             that one has the value, made there or sent. What is computed again counts where
backward    A B   C D   E F             its own block needs it, for what crosses a cut is not computed again
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from partita.arrays import Flags, Ints, Reals
from partita.cost.costs import Costs
from partita.cost.lifetimes import Lifetimes, lifetimes_of
from partita.graph.graph import Graph
from partita.graph.homes import homes_of
from partita.graph.kinds import kinds_of
from partita.graph.operator import Ref
from partita.graph.recompute import AGAIN
from partita.lowering.recomputation import step_by_rule
from partita.plan.memory import Recompute
from partita.recipes.balance import numbered
from partita.searches.tied_parameters import shared_additions, tied_parameters


@dataclass(frozen=True, eq=False)
class Sections:
    """The blocks of a graph's step under a rule, in a plan with stages (`staged`) or without."""

    graph: Graph
    rule: Recompute
    staged: bool

    @cached_property
    def step(self) -> Graph:
        """The step as the rule rewrites it."""
        return step_by_rule(self.graph, self.rule, last=self.staged)

    @cached_property
    def count(self) -> int:
        """Blocks."""
        return len(numbered(self.graph)[0]) + 1

    @cached_property
    def original(self) -> Ints:
        """The place in the graph of each operator of the step, or of what it is a copy of."""
        index = self.graph.index
        return np.array([index[o.name.removesuffix(AGAIN)] for o in self.step.operators])

    @cached_property
    def kind(self) -> Ints:
        """Of each operator; a copy's is its original's."""
        return np.array(kinds_of(self.graph).number)[self.original]

    @cached_property
    def block(self) -> Ints:
        """Of each operator of the step; a copy's is its original's."""
        return numbered(self.graph)[1][self.original]

    @cached_property
    def in_any_cut(self) -> Flags:
        """Operators that the stage of their block carries out, wherever it is cut: not what every reader makes for
        itself, nor what adds over cuts, and of copies those that backward of their own block needs."""
        step, block, free = self.step, self.block.tolist(), homes_of(self.graph).free | shared_additions(self.graph)
        copies = {o.name: at for o, at in zip(step.operators, block, strict=True) if o.name.endswith(AGAIN)}
        needed, found = set[str](), list[bool]()
        for operator, at in zip(reversed(step.operators), reversed(block), strict=True):
            found.append(operator.name in needed if operator.name in copies else operator.name not in free)
            if found[-1]:
                needed.update(ref.name for ref in operator.reads() if copies.get(ref.name) == at)
        return np.array(found[::-1], np.bool_)

    @cached_property
    def for_next(self) -> Flags:
        """Copies that backward of their own block does not need, but that of the next one, if one stage has both."""
        step, block = self.step, self.block.tolist()
        needed, found = set[tuple[str, int]](), list[bool]()
        for operator, at, there in zip(*map(reversed, (step.operators, block, self.in_any_cut.tolist())), strict=True):
            found.append(not there and operator.name.endswith(AGAIN) and (operator.name, at) in needed)
            if there or found[-1]:
                needed.update((ref.name, at if found[-1] else at - 1) for ref in operator.reads())
        return np.array(found[::-1], np.bool_)

    @cached_property
    def crossing(self) -> tuple[tuple[tuple[float, float], ...], tuple[tuple[float, float], ...]]:
        """Bytes, a sample's and the rest, that each block's forward reads of the block before, and that its backward
        reads of the one behind."""
        graph, block, end = self.graph, numbered(self.graph)[1].tolist(), self.graph.forward_length
        met: tuple[dict[int, set[Ref]], dict[int, set[Ref]]] = ({}, {})
        for i, operator in enumerate(graph.operators):
            for ref in operator.reads():
                made = graph.index.get(ref.name, -1)
                if made >= 0 and (made < end) == (i < end) and block[made] - block[i] == (1 if i >= end else -1):
                    met[i >= end].setdefault(min(block[made], block[i]), set()).add(ref)
        free = homes_of(graph).free
        found = []
        for each in met:
            kept = ([ref for ref in each.get(b, ()) if ref.name not in free] for b in range(self.count - 1))
            sizes = [[size_of(graph, ref) for ref in refs] for refs in kept]
            found.append(tuple((sum(one for one, _ in some), sum(rest for _, rest in some)) for some in sizes))
        return found[0], found[1]

    @cached_property
    def linked(self) -> Flags:
        """Of each cut, whether the block behind it reads what the one before made, and on the way back the other way
        round: then one stage waits for the other."""
        there, back = (np.array([one + rest > 0 for one, rest in way] or [True]) for way in self.crossing)
        found: Flags = there & back
        return found[: self.count - 1]

    def links(self, size: int) -> tuple[Reals, Reals]:
        """Bytes of `size` samples that go from each block to the next one, and back."""
        there, back = (np.array([one * size + rest for one, rest in way] + [0.0]) for way in self.crossing)
        return there, back

    def seconds(self, costs: Costs, size: int) -> tuple[Reals, Reals]:
        """Of each block's forward and backward for `size` samples, on a device of speed 1."""
        each = self._prices(costs, size) * self.in_any_cut
        end, block = self.step.forward_length, self.block
        return _summed(block[:end], each[:end], self.count), _summed(block[end:], each[end:], self.count)

    @cached_property
    def input_gradient(self) -> Flags:
        """Operators of backward that lead to the first block, and copies that these need: no stage but the first one
        may put them off."""
        step, block, end = self.step, self.block.tolist(), self.step.forward_length
        found = np.zeros(len(block), np.bool_)
        before, needed, added = set[str](), set[tuple[str, int]](), shared_additions(self.graph)
        for i in reversed(range(end, len(block))):
            operator = step.operators[i]
            copy = operator.name.endswith(AGAIN)
            leads = not copy and operator.name in before
            found[i] = (operator.name, block[i]) in needed if copy else leads and block[i] > 0
            if leads or (not copy and block[i] == 0 and operator.name not in added):
                before.update(ref.name for ref in operator.reads())
            if found[i]:
                needed.update((ref.name, block[i]) for ref in operator.reads())
        return found

    @cached_property
    def weight_gradient(self) -> Flags:
        """Operators of backward that nothing outside their block waits for."""
        step, block, end = self.step, self.block.tolist(), self.step.forward_length
        found, out = np.zeros(len(block), np.bool_), set[str]()
        for i in reversed(range(len(block))):
            operator = step.operators[i]
            found[i] = i >= end and not operator.name.endswith(AGAIN) and operator.name not in out
            for ref in operator.reads():
                if operator.name in out or block[step.index.get(ref.name, i)] != block[i]:
                    out.add(ref.name)
        return found

    def seconds_of(self, some: Flags, costs: Costs, size: int) -> Reals:
        """Seconds of each block's operators of these."""
        return _summed(self.block, self._prices(costs, size) * some, self.count)

    def remade_seconds(self, costs: Costs, size: int) -> Reals:
        """Seconds of what each block reads that every stage makes for itself in its forward pass."""
        prices, (block, names) = costs.prices(size), self._free
        return _summed(block, np.array([prices[name] for name in names], np.float64), self.count)

    @cached_property
    def _free(self) -> tuple[Ints, tuple[str, ...]]:
        """Blocks, and names of free operators that they need."""
        graph, free, block = self.graph, homes_of(self.graph).free, self.block.tolist()
        behind: dict[str, set[str]] = {}  # of each free operator itself and those that it needs
        for operator in graph.operators:
            if operator.name in free:
                behind[operator.name] = {operator.name}.union(*(behind.get(r.name, ()) for r in operator.reads()))
        found: set[tuple[int, str]] = set()
        for i in np.flatnonzero(self.in_any_cut).tolist():
            for ref in self.step.operators[i].reads():
                found.update((block[i], name) for name in behind.get(ref.name, ()))
        pairs = sorted(found)
        return np.array([number for number, _ in pairs], np.int64), tuple(name for _, name in pairs)

    def _prices(self, costs: Costs, size: int) -> Reals:
        """Core-seconds of each operator."""
        prices = costs.prices(size)
        found: Reals = np.array([prices[name] for name in kinds_of(self.graph).names])[self.kind]
        return found

    # What it keeps.

    @cached_property
    def lifetimes(self) -> Lifetimes:
        """Those of the step's values, for one sample."""
        return lifetimes_of(self.step, 1)

    @cached_property
    def intervals(self) -> tuple[Ints, Ints, Ints, Reals, Reals]:
        """Of what is alive in a block: its number, the operators from which and up to which, bytes as `each * samples +
        rest`. What a block is sent is there from its first operator on."""
        first = np.full(self.count, len(self.block))
        np.minimum.at(first, self.block, np.arange(len(self.block)))
        found = ((b, int(first[b]) if made < 0 else made, last, ref) for b, made, last, ref in self._lives())
        rows = [(b, made, last, *size_of(self.step, ref)) for b, made, last, ref in found]
        block, made, last, each, rest = np.array(rows, np.float64).reshape(-1, 5).T
        return block.astype(np.int64), made.astype(np.int64), last.astype(np.int64), each, rest

    def _lives(self) -> Iterator[tuple[int, int, int, Ref]]:
        """(block, maker, -1: from elsewhere, last reader in the block, the value) of every value but gradients."""
        step, block, end = self.step, self.block.tolist(), self.step.forward_length
        lifetimes = self.lifetimes
        own, sent = dict[Ref, int](), dict[Ref, tuple[int, int, Ref]]()
        for i, operator in enumerate(step.operators):
            for ref in operator.reads():
                root = lifetimes.root.get(ref)
                if root not in lifetimes.made or not self.in_any_cut[i]:
                    continue
                if block[lifetimes.made[root]] == block[i]:
                    own[root] = i
                elif i >= end > lifetimes.made[root] and ref.name in step.index:
                    sent[root] = (block[i], i, ref)
        for root, made in lifetimes.made.items():
            if not self.in_any_cut[made] or root in lifetimes.gradients:
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
        order = np.lexsort((np.arange(len(self.block)), self.block))
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        _, made, last, each, rest = self.intervals
        found = []
        for amount in (each, rest):
            change = np.zeros(len(order) + 1)
            np.add.at(change, place[made], amount)
            np.add.at(change, place[last] + 1, -amount)
            found.append(np.cumsum(change)[:-1])
        return order, found[0], found[1], np.searchsorted(self.block[order], np.arange(self.count))

    def kept(self, size: int) -> Reals:
        """Bytes of each block that wait from its forward to its backward."""
        each, rest = self._kept
        return each * size + rest

    @cached_property
    def _kept(self) -> tuple[Reals, Reals]:
        number, made, last, each, rest = self.intervals
        end = self.step.forward_length
        waiting = (made < end) & (last >= end)
        each, rest = (_summed(number[waiting], one[waiting], self.count) for one in (each, rest))
        return each, rest

    def deferred(self, size: int) -> Reals:
        """Bytes of each block that `weight_gradient` operators wait with, when all that may not be put off is done."""
        return _summed(self._deferred[0], self._deferred[1] * size + self._deferred[2], self.count)

    @cached_property
    def _deferred(self) -> tuple[Ints, Reals, Reals]:
        step, block, end, lifetimes = self.step, self.block.tolist(), self.step.forward_length, self.lifetimes
        held: dict[Ref, int] = {}
        for i in np.flatnonzero(self.weight_gradient).tolist():
            for ref in step.operators[i].reads():
                root = lifetimes.root.get(ref)
                made = lifetimes.made.get(root, -1) if root else -1
                done = made >= 0 and (made < end or self.input_gradient[made])
                there = done and block[made] == block[i] and self.in_any_cut[made]
                if root and there and root not in lifetimes.gradients:
                    held[root] = block[i]
        each, rest = np.array([size_of(step, root) for root in held], np.float64).reshape(-1, 2).T
        return np.array(list(held.values()), np.int64), each, rest

    def fullest(self, size: int, given: bool = True) -> Reals:
        """Bytes of each block while the fullest operator of its backward runs; where another block's backward is under
        way before it, what is kept alone. Unless gradients are `given` away at once, with those that it has made."""
        order, each, rest, starts = self.live_bytes
        made = 0.0 if given else self.gradient_bytes[0]
        alive = np.where(order >= self.step.forward_length, each * size + rest + made, 0.0)
        top = np.repeat(np.maximum.reduceat(alive, starts), np.diff(np.append(starts, len(alive))))
        at = np.minimum.reduceat(np.where(alive == top, np.arange(len(alive)), len(alive)), starts)
        found: Reals = np.where(order[at] < self.previous_backward, alive[at], self.kept(size))
        return np.maximum(found, self.kept(size))

    @cached_property
    def previous_backward(self) -> Ints:
        """Of each block the operator with which backward of any block before it begins."""
        begun = np.full(self.count, len(self.block))
        later = np.flatnonzero(np.arange(len(self.block)) >= self.step.forward_length)
        np.minimum.at(begun, self.block[later], later)
        return np.concatenate([[len(self.block)], np.minimum.accumulate(begun)[:-1]])

    @cached_property
    def gradient_bytes(self) -> tuple[Reals, Reals]:
        """Bytes of gradients that a block has made when each operator in the order of `live_bytes` ends, and of each
        block those that are there before backward of any block before it begins."""
        order, starts = self.live_bytes[0], self.live_bytes[3]
        amount, tied = np.zeros(len(self.block)), {one.name for one in tied_parameters(self.graph)}
        root_of, maker = self.lifetimes.root, self.lifetimes.made
        roots = {root_of[ref] for name, ref in self.step.gradients if name not in tied and ref in root_of}
        for root in roots & self.lifetimes.gradients:
            amount[maker[root]] += self.step.tensor(root).size() * self.in_any_cut[maker[root]]
        total = np.cumsum(amount[order])
        before = np.repeat(total[starts] - amount[order][starts], np.diff(np.append(starts, len(order))))
        early = np.arange(len(self.block)) < self.previous_backward[self.block]
        return total - before, _summed(self.block, amount * early, self.count)


def size_of(step: Graph, ref: Ref) -> tuple[float, float]:
    """A value's bytes a sample, and those of it that do not grow."""
    tensor = step.tensor(ref)
    one, two = tensor.size(1), tensor.size(2)
    return two - one, 2 * one - two


def _summed(number: Ints, amount: Reals, count: int) -> Reals:
    found: Reals = np.bincount(number, amount, count).astype(np.float64)
    return found
