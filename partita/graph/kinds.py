"""Operators that differ in names only, of which looking at one is enough: a model of a hundred layers has few kinds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from partita.graph.batch import substitute
from partita.graph.graph import Graph
from partita.graph.operator import Operator
from partita.graph.repeats import tokens_of


@dataclass(frozen=True)
class Kinds:
    """`number[i]` is the kind of operator i, `names` has the first operator of each kind, `sample` is the graph with
    these operators only, and those that make what they read."""

    number: tuple[int, ...]
    names: tuple[str, ...]
    sample: Graph

    def at(self, batch: int) -> Iterator[tuple[Operator, Graph]]:
        """An operator of each kind for `batch` samples, and the graph that knows what it reads."""
        concrete = substitute(self.sample, batch)
        for name in self.names:
            yield concrete.operators[concrete.index[name]], concrete


def kinds_of(graph: Graph) -> Kinds:
    """The kinds of a graph's operators, worked out once."""
    return graph.once("kinds", lambda: _kinds(graph))


def _kinds(graph: Graph) -> Kinds:
    number = tokens_of(graph)
    first = list({token: place for place, token in reversed(list(enumerate(number)))}.items())
    places = [place for _, place in sorted(first)]
    makers = {graph.index[ref.name] for place in places for ref in graph.operators[place].reads()
              if ref.name in graph.index}  # fmt: skip
    kept = tuple(graph.operators[place] for place in sorted(makers.union(places)))
    names = tuple(graph.operators[place].name for place in places)
    return Kinds(tuple(number), names, replace(graph, operators=kept, repeats=()))
