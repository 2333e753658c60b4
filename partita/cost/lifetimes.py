"""When each value of a graph is alive: from the operator that makes it to the last operator that reads it.

position      0    1    2    3           position p lies before operator p
operators       a    b    c
a's value          |---------|           alive during a, b and c, and at positions 1 and 2, if c reads it last
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from partita.cost.memory_curve import ByteSeries
from partita.cost.scratch import card_size
from partita.graph.graph import Graph
from partita.graph.operator import Ref
from partita.graph.patterns import shares_memory
from partita.units import Bytes

MADE = 2  # columns of `live_bytes`: activations, gradients of parameters


@dataclass(frozen=True)
class Lifetimes:
    """The lifetimes of a graph's values, and their bytes for `batch` samples.

    A view has no memory of its own: `root` maps each value to the value whose memory it uses. `made` and `last` map the
    roots that operators make to the places of the operator that makes them and of the last one that reads them or a
    view of them; gradients of parameters live to the end of the graph. `reads` maps the names of the graph's inputs to
    the place of their last reader. On a `card` some values have other sizes than where they were captured.
    """

    graph: Graph
    batch: int
    root: dict[Ref, Ref] = field(default_factory=dict)
    made: dict[Ref, int] = field(default_factory=dict)
    last: dict[Ref, int] = field(default_factory=dict)
    reads: dict[str, int] = field(default_factory=dict)
    card: bool = False

    @cached_property
    def live_bytes(self) -> tuple[ByteSeries, ByteSeries]:
        """Bytes of what operators make that are alive (during each operator, at each position).

        Shapes [operators, MADE] and [operators + 1, MADE].
        """
        count, final = len(self.graph.operators), self.gradients
        rises, falls = (np.zeros((count + 2, MADE), np.int64) for _ in range(2))
        for ref, at in self.made.items():
            part, size = int(ref in final), self.size(ref)
            rises[at, part] += size
            falls[self.last[ref] + 1, part] += size
        during = np.cumsum(rises - falls, axis=0)[: count + 1]
        return during[:count], during - rises[: count + 1]

    def input_bytes(self, names: Collection[str]) -> ByteSeries:
        """Bytes of the named inputs that operators still have to read, at each position: shape [operators + 1]."""
        found = np.zeros(len(self.graph.operators) + 1, np.int64)
        inputs = dict(self.graph.inputs)
        for name in names:
            if name in self.reads:
                found[: self.reads[name] + 1] += inputs[name].size(self.batch)
        return found

    @cached_property
    def gradients(self) -> frozenset[Ref]:
        """The roots of parameters' gradients."""
        return frozenset(self.root[ref] for _, ref in self.graph.gradients if ref in self.root)

    @cached_property
    def gradient_of(self) -> dict[str, Ref]:
        """Parameter -> the value that is its gradient."""
        return dict(self.graph.gradients)

    def size(self, ref: Ref) -> Bytes:
        """Bytes of a value."""
        size = self.graph.tensor(ref).size(self.batch)
        return card_size(self.graph, ref, self.batch, size) if self.card else size

    def released(self, parameter: str) -> Bytes:
        """Bytes that are free once a parameter's gradient was copied into its bucket; 0 if something else reads the
        gradient as well."""
        ref = self.gradient_of.get(parameter)
        if ref is None or ref in self.graph.shared_gradients or self.root.get(ref) not in self.gradients:
            return 0
        return self.size(self.root[ref])

    def sent(self, start: int, stop: int) -> Iterator[tuple[str, Bytes]]:
        """(name, bytes) of each value that operators `start` to `stop` make for other stages. Bytes are 0 where
        operators of this stage still read the value, so that it is counted among the stage's own."""
        for name, ref in self.graph.sends:
            if start <= self.graph.index.get(ref.name, -1) < stop:
                kept = self.last.get(self.root.get(ref, ref), -1) >= stop
                yield name, 0 if kept else self.size(ref)


def lifetimes_of(graph: Graph, batch: int, card: bool = False) -> Lifetimes:
    """The lifetimes of a graph's values, for `batch` samples, on a processor or a card.

    Only sizes depend on the batch, so lifetimes are found once a graph, and kept with it.
    """
    found = graph.once("lifetimes", lambda: _lifetimes(graph))
    return graph.once(("lifetimes", batch, card), lambda: replace(found, batch=batch, card=card))


def _lifetimes(graph: Graph) -> Lifetimes:
    found, inputs = Lifetimes(graph, 1), {name for name, _ in graph.inputs}
    root, last = found.root, found.last
    for i, operator in enumerate(graph.operators):
        reads = list(operator.reads())
        for ref in reads:
            if ref.name in inputs:
                root[ref] = ref
            if ref in root:
                last[root[ref]] = i
        shares = bool(reads) and shares_memory(operator, graph)
        for ref in operator.results():
            if not shares:
                root[ref], found.made[ref], last[ref] = ref, i, i
            elif reads[0] in root:
                root[ref] = root[reads[0]]
    for _, ref in graph.gradients:
        if root.get(ref) in found.made:
            last[root[ref]] = len(graph.operators)
    found.reads.update({ref.name: at for ref, at in last.items() if ref.name in inputs})
    return found
