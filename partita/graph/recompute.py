"""Values of the forward pass that are not kept for backward but computed again, just before it needs them.

    forward     a  b  c  d                  names = b, c: only a and d are kept
    backward    D  b' c' C  B  A            C reads c, and c is made of b; B finds b' alive

Nothing is computed again twice, and what is computed again goes with its last reader. Random operators draw the same
numbers as before; running statistics are a result of the first computing only (ME-07; Chen et al. 2016).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from partita.graph.graph import Graph
from partita.graph.operator import Operator, Phase, Ref, reading
from partita.graph.patterns import views_of
from partita.graph.repeats import DRAW

AGAIN: Final = "@again"
KEPT: Final = ("kept", True)  # a random operator whose numbers are drawn again
REDRAWN: Final = ("again", True)
BATCH_NORM: Final = "aten._native_batch_norm_legit_functional.default"  # argument 5 tells whether it trains


@dataclass(frozen=True)
class Recomputed:
    """The rewritten step. `places[i]` is where the old operator i now begins, with all that is computed again for it;
    the last place is the end."""

    graph: Graph
    places: tuple[int, ...]


def recomputable(graph: Graph) -> frozenset[str]:
    """The forward operators that may be computed again with the same result: all but those that read what the forward
    pass changes, or make what outlives it."""
    changed = {seen for name, _ in graph.mutations for seen in views_of(graph, name)}
    outlive = set(graph.results()) - {ref for _, ref in graph.mutations}
    stay = {ref.name for ref in outlive}
    return frozenset(
        operator.name
        for operator in graph.operators[: graph.forward_length]
        if operator.name not in stay
        and not operator.target.startswith("partita.opaque")
        and (_trains(operator) or not any(ref.name in changed for ref in operator.reads()))
    )


def _trains(operator: Operator) -> bool:
    """Whether it is a batch norm whose results do not depend on the running statistics that it reads."""
    return operator.target == BATCH_NORM and operator.arguments[5] is True


def recomputed(graph: Graph, names: Collection[str]) -> Recomputed:
    """The step in which backward computes the named forward operators again as far as it needs them.

    Copies are called `name@again` and stand before their first reader. Names that are no forward operators, or may
    not be computed again, change nothing.
    """
    wanted = recomputable(graph).intersection(names)
    made: set[str] = set()
    operators, places = list(graph.operators[: graph.forward_length]), list(range(graph.forward_length))
    taken = partial(_taken, made)
    for operator in graph.operators[graph.forward_length :]:
        places.append(len(operators))
        for place in _missing(graph, operator, wanted, made):
            made.add(graph.operators[place].name)
            operators.append(_again(graph.operators[place], taken))
        operators.append(reading(operator, taken))
    if not made:
        return Recomputed(graph, tuple(range(len(graph.operators) + 1)))
    for i, operator in enumerate(graph.operators[: graph.forward_length]):
        if operator.target in DRAW and operator.name in made:
            operators[i] = replace(operator, keywords=(*operator.keywords, KEPT))
    return Recomputed(replace(graph, operators=tuple(operators), repeats=()), (*places, len(operators)))


def _taken(made: Collection[str], ref: Ref) -> Ref:
    """What backward reads for `ref`: the copy, if one was `made`."""
    return Ref(ref.name + AGAIN, ref.index) if ref.name in made else ref


def _missing(graph: Graph, reader: Operator, wanted: Collection[str], made: Collection[str]) -> list[int]:
    """The places of what must be computed again before `reader`, in order."""
    found: set[int] = set()
    asked = [ref.name for ref in reader.reads()]
    while asked:
        name = asked.pop()
        if name in wanted and name not in made and graph.index[name] not in found:
            found.add(graph.index[name])
            asked += [ref.name for ref in graph.operators[graph.index[name]].reads()]
    return sorted(found)


def _again(operator: Operator, taken: Callable[[Ref], Ref]) -> Operator:
    """A copy for backward; it is no derivative, and so has no twin."""
    if operator.target in DRAW:
        operator = replace(operator, keywords=(*operator.keywords, REDRAWN))
    return reading(operator, taken, name=operator.name + AGAIN, phase=Phase.BACKWARD)
