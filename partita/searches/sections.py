"""What each block of a model takes at the least, whatever stage it goes to, by rule of recomputation.

block        0     1     2              a value counts in the block of what reads it in backward: whichever stage has
forward     a b   c d   e f             that one has the value, made there or sent. What is computed again counts where
backward    A B   C D   E F             its own block needs it, for what crosses a cut is not computed again
"""

from __future__ import annotations

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
from partita.recipes.balance import block_count, numbered
from partita.searches.tied_parameters import shared_additions


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
        """How many blocks there are."""
        return block_count(self.graph)

    @cached_property
    def original(self) -> Ints:
        """The place in the graph of each operator of the step, or of what it is a copy of."""
        index = self.graph.index
        return np.array([index[o.name.removesuffix(AGAIN)] for o in self.step.operators])

    @cached_property
    def kind(self) -> Ints:
        """The kind of each operator of the step; a copy's is its original's."""
        return np.array(kinds_of(self.graph).number)[self.original]

    @cached_property
    def block(self) -> Ints:
        """The block of each operator of the step; a copy's is its original's."""
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
        return by_block(block[:end], each[:end], self.count), by_block(block[end:], each[end:], self.count)

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
        return by_block(self.block, self._prices(costs, size) * some, self.count)

    def remade_seconds(self, costs: Costs, size: int) -> Reals:
        """Seconds of what each block reads that every stage makes for itself in its forward pass."""
        prices, (block, names) = costs.prices(size), self._free
        return by_block(block, np.array([prices[name] for name in names], np.float64), self.count)

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

    @cached_property
    def lifetimes(self) -> Lifetimes:
        """Those of the step's values, for one sample."""
        return lifetimes_of(self.step, 1)


def size_of(step: Graph, ref: Ref) -> tuple[float, float]:
    """A value's bytes a sample, and those of it that do not grow."""
    tensor = step.tensor(ref)
    one, two = tensor.size(1), tensor.size(2)
    return two - one, 2 * one - two


def by_block(number: Ints, amount: Reals, count: int) -> Reals:
    """The sum of the amounts of each of `count` blocks; shape [count]."""
    found: Reals = np.bincount(number, amount, count).astype(np.float64)
    return found
