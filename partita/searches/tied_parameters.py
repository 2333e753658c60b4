"""Parameters that several blocks of a model read: stages that are cut between hold them each."""

from __future__ import annotations

from dataclasses import dataclass

from partita.graph.graph import Graph
from partita.graph.homes import homes_of
from partita.recipes.balance import numbered


@dataclass(frozen=True, slots=True)
class TiedParameter:
    """A parameter of `size` bytes, read in blocks `first` to `last`."""

    name: str
    first: int
    last: int
    size: int


def tied_parameters(graph: Graph) -> tuple[TiedParameter, ...]:
    """The trained parameters that several blocks read."""
    return graph.once("tied", lambda: _tied_parameters(graph))


def _tied_parameters(graph: Graph) -> tuple[TiedParameter, ...]:
    _, block = numbered(graph)
    readers = homes_of(graph).readers
    blocks = ((p, block[readers.get(p.name, [0])]) for p in graph.trainable)
    spans = ((p, int(at.min()), int(at.max())) for p, at in blocks)
    return tuple(TiedParameter(p.name, first, last, p.tensor.size()) for p, first, last in spans if first < last)


def shared_additions(graph: Graph) -> frozenset[str]:
    """What adds up a gradient of parts that several blocks make: stages with some of them each add up their own."""
    block, found = numbered(graph)[1], set[str]()
    for _, ref in graph.gradients:
        values, names = homes_of(graph).summed(ref)
        if names and len({int(block[graph.index[value.name]]) for value in values}) > 1:
            found.update(names)
    return frozenset(found)
