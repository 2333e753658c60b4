"""Where the step can be cut, and what is alive there.

position     0    1    2    3          position p lies before operator p
operators      a    b    c
a's life          |---------|          alive across 1 and 2 if c is its last reader
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from partita.graph.graph import Graph
from partita.graph.operator import Phase, Ref
from partita.graph.patterns import shares_memory


@dataclass(frozen=True)
class Liveness:
    """When each value that an operator makes is made and last read; `values[i]` lives in `(made[i], last[i]]`.

    What outlives the step (loss, gradients, new buffers) is last read at the number of operators. `forward_last` counts
    readers of the forward pass only (-1: none). `roots[i]` is the value whose memory value i shares (itself: its own),
    -1 where that is a leaf's.
    """

    values: tuple[Ref, ...]
    made: tuple[int, ...]
    last: tuple[int, ...]
    forward_last: tuple[int, ...]
    roots: tuple[int, ...]

    def sent(self, length: int) -> Iterator[tuple[int, tuple[Ref, ...]]]:
        """(position, what a pipeline sends over a cut there) for positions in a forward pass of this length: the values
        made before that a forward operator reads there or later, in the order made."""
        alive, number = list[int](), 0
        for position in range(1, length):
            while number < len(self.made) and self.made[number] < position:
                alive.append(number)
                number += 1
            alive = [i for i in alive if self.forward_last[i] >= position]
            yield position, tuple(self.values[i] for i in alive)


def liveness(graph: Graph) -> Liveness:
    """The lives of all values of a graph; one pass over its operators, once."""
    return graph.once("lives", lambda: _liveness(graph))


def _liveness(graph: Graph) -> Liveness:
    place = {ref: number for number, ref in enumerate(_values(graph))}
    made, last = [0] * len(place), [-1] * len(place)
    forward_last, roots = [-1] * len(place), list(range(len(place)))
    for position, operator in enumerate(graph.operators):
        reads = [place.get(ref, -1) for ref in operator.reads()]
        for number in reads:
            if number >= 0:
                last[number] = position
                forward_last[number] = position if operator.phase is Phase.FORWARD else forward_last[number]
        shares = bool(reads) and shares_memory(operator, graph)
        for ref in operator.results():
            made[place[ref]] = position
            if shares:
                roots[place[ref]] = roots[reads[0]] if reads[0] >= 0 else -1
    for ref in graph.results():
        if ref in place:
            last[place[ref]] = len(graph.operators)
    return Liveness(tuple(place), tuple(made), tuple(last), tuple(forward_last), tuple(roots))


def _values(graph: Graph) -> Iterator[Ref]:
    for operator in graph.operators:
        yield from operator.results()


@dataclass(frozen=True, slots=True)
class Cut:
    """A place where the forward pass divides into stages: `values` cross it."""

    position: int
    values: tuple[Ref, ...]


def legal_cuts(graph: Graph) -> tuple[Cut, ...]:
    """The cuts of the forward pass over which only activations cross, in order.

    A cut that a view of a parameter or buffer crosses is left out, for the later stage would need another's weights; so
    is one just before a view of an activation, which costs the same on its other side, and one that parts who reads a
    buffer from who changes it, for each stage has a copy.
    """
    return graph.once("cuts", lambda: tuple(_legal_cuts(graph)))


def _legal_cuts(graph: Graph) -> Iterator[Cut]:
    lives = liveness(graph)
    weights = {parameter.name for parameter in graph.parameters} | {buffer.name for buffer in graph.buffers}
    borrowed, joined = _borrowed(graph, weights), _changing(graph)
    for position, values in lives.sent(graph.forward_length):
        own = values and position not in joined and not any(ref.name in borrowed for ref in values)
        behind = graph.operators[position]
        if own and (behind.name in borrowed or not shares_memory(behind, graph)):
            yield Cut(position, values)


def _changing(graph: Graph) -> frozenset[int]:
    """The places between the first and the last of a buffer's readers and the operator that makes its new value."""
    places = {name: [graph.index[ref.name]] for name, ref in graph.mutations if ref.name in graph.index}
    for place, operator in enumerate(graph.operators[: graph.forward_length] if places else ()):
        for ref in operator.reads():
            places.get(ref.name, []).append(place)
    return frozenset(at for every in places.values() for at in range(min(every) + 1, max(every) + 1))


def _borrowed(graph: Graph, weights: set[str]) -> frozenset[str]:
    """Operators that compute from parameters and buffers alone: views, casts, transposes of weights."""
    found: set[str] = set()
    for operator in graph.operators[: graph.forward_length]:
        names = {ref.name for ref in operator.reads()}
        if names and names <= weights | found:
            found.add(operator.name)
    return frozenset(found)
