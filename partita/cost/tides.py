"""Live bytes of one pass through a graph, or through a stage of it: what is made, how long it stays, what for.

position      0    1    2    3           position p lies before operator p
operators       a    b    c
a's life           |---------|           alive during a, b and c, across 1 and 2, if c is its last reader
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from partita.cost.curve import Course
from partita.graph.graph import Graph
from partita.graph.operator import Ref
from partita.graph.patterns import shares_memory
from partita.units import Bytes

MADE = 2  # kinds of what operators make: activations, gradients of parameters


@dataclass(frozen=True)
class Tide:
    """A graph's values by the memory that they own; views share their root's.

    `made`, `last` and `size` are those of roots that operators make, gradients stay to the end; `reads` has the last
    reader of what comes from outside, or of a view of it.
    """

    graph: Graph
    batch: int
    root: dict[Ref, Ref] = field(default_factory=dict)
    made: dict[Ref, int] = field(default_factory=dict)
    last: dict[Ref, int] = field(default_factory=dict)
    reads: dict[str, int] = field(default_factory=dict)

    @cached_property
    def made_course(self) -> tuple[Course, Course]:
        """(bytes alive during each operator, across each position) of what operators make, shape [., MADE]."""
        count, final = len(self.graph.operators), self.gradients
        rises, falls = (np.zeros((count + 2, MADE), np.int64) for _ in range(2))
        for ref, at in self.made.items():
            part, size = int(ref in final), self.size(ref)
            rises[at, part] += size
            falls[self.last[ref] + 1, part] += size
        during = np.cumsum(rises - falls, axis=0)[: count + 1]
        return during[:count], during - rises[: count + 1]

    def outside(self, names: Collection[str]) -> Course:
        """Bytes of these inputs that are still to be read at each position."""
        found = np.zeros(len(self.graph.operators) + 1, np.int64)
        inputs = dict(self.graph.inputs)
        for name in names:
            if name in self.reads:
                found[: self.reads[name] + 1] += inputs[name].size(self.batch)
        return found

    @cached_property
    def gradients(self) -> frozenset[Ref]:
        """Roots of parameters' gradients."""
        return frozenset(self.root[ref] for _, ref in self.graph.gradients if ref in self.root)

    @cached_property
    def wanted(self) -> dict[str, Ref]:
        return dict(self.graph.gradients)

    def size(self, ref: Ref) -> Bytes:
        return self.graph.tensor(ref).size(self.batch)

    def gradient(self, parameter: str) -> Bytes:
        """Bytes that go when a parameter's gradient is taken; 0 where something else needs it as well."""
        ref = self.wanted.get(parameter)
        if ref is None or ref in self.graph.shared_gradients or self.root.get(ref) not in self.gradients:
            return 0
        return self.size(self.root[ref])

    def leaving(self, start: int, stop: int) -> Iterator[tuple[str, Bytes]]:
        """(name, bytes) of what operators `start` to `stop` leave for other stages; bytes are 0 while this stage keeps
        the value itself."""
        for name, ref in self.graph.sends:
            if start <= self.graph.index.get(ref.name, -1) < stop:
                kept = self.last.get(self.root.get(ref, ref), -1) >= stop
                yield name, 0 if kept else self.size(ref)


def tide_of(graph: Graph, batch: int) -> Tide:
    """The lives of a graph's values for `batch` samples."""
    found, inputs = Tide(graph, batch), {name for name, _ in graph.inputs}
    root, last = found.root, found.last
    for i, operator in enumerate(graph.operators):
        reads = list(operator.reads())
        for ref in reads:
            if ref.name in inputs:
                root[ref] = ref
            if ref in root:
                last[root[ref]] = i
        shares = bool(reads) and shares_memory(operator, graph)
        for index, tensor in enumerate(operator.outputs):
            ref = Ref(operator.name, index if operator.several else -1)
            if tensor is not None and not shares:
                root[ref], found.made[ref], last[ref] = ref, i, i
            elif tensor is not None and reads[0] in root:
                root[ref] = root[reads[0]]
    for _, ref in graph.gradients:
        if root.get(ref) in found.made:
            last[root[ref]] = len(graph.operators)
    found.reads.update({ref.name: at for ref, at in last.items() if ref.name in inputs})
    return found
