"""Parameters that several blocks of a model read: stages that are cut between hold them each."""

from __future__ import annotations

from dataclasses import dataclass

from partita.graph.graph import Graph
from partita.graph.homes import homes_of
from partita.recipes.balance import numbered


@dataclass(frozen=True, slots=True)
class Tied:
    """A parameter of `size` bytes, read in blocks `first` to `last`."""

    name: str
    first: int
    last: int
    size: int


def shared_of(graph: Graph) -> tuple[Tied, ...]:
    """The trained parameters that several blocks read."""
    return graph.once("shared", lambda: _shared_of(graph))


def _shared_of(graph: Graph) -> tuple[Tied, ...]:
    _, block = numbered(graph)
    readers = homes_of(graph).readers
    found = ((p, block[readers.get(p.name, [0])]) for p in graph.trainable)
    return tuple(Tied(p.name, int(at.min()), int(at.max()), p.tensor.size()) for p, at in found if at.min() < at.max())
