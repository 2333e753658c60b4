"""Which forward operator each operator of a step moves with when the forward pass is cut."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from partita.errors import PlanError
from partita.graph.flops import is_contraction
from partita.graph.graph import TANGENT, Graph
from partita.graph.operator import Operator, Phase, Ref


def stage_starts(graph: Graph, firsts: Sequence[str]) -> tuple[int, ...]:
    """The forward position at which each stage starts: an operator's name or a module's path; the first one starts at
    the beginning. Raises PlanError for a name that the forward pass does not have, for stages out of order, and for one
    that parts who reads a buffer from who changes it."""
    forward = graph.operators[: graph.forward_length]
    starts = []
    for number, first in enumerate(firsts):
        within = (i for i, o in enumerate(forward) if o.module == first or o.module.startswith(first + "."))
        inside = within if first else iter(())
        at = graph.index.get(first, -1) if number else 0
        at = at if 0 <= at < len(forward) else next(inside, -1)
        if at < 0:
            raise PlanError(
                f"stage {number} starts at {first!r}, which is no forward operator or module of {graph.name}; "
                "give a name that `partita capture` writes"
            )
        starts.append(at)
    if any(after <= before for before, after in pairwise(starts)):
        raise PlanError(f"the stages of {graph.name} start at operators {starts}; order them as the forward pass goes")
    _keep_together(graph, starts)
    return tuple(starts)


def _keep_together(graph: Graph, starts: Sequence[int]) -> None:
    """Raises PlanError for a buffer that one stage changes and another one reads: each has a copy of its own."""
    homes = homes_of(graph)
    for name, ref in graph.mutations if len(starts) > 1 else ():
        places = {homes.home[i] for i in (graph.index.get(ref.name, -1), *homes.readers.get(name, ())) if i >= 0}
        if len({bisect_right(starts, place) for place in places}) > 1:
            start = next(start for start in starts if start > min(places))
            first, last = (graph.operators[place].name for place in (min(places), max(places)))
            raise PlanError(
                f"a stage of {graph.name} starts at {graph.operators[start].name!r}, which parts who reads buffer "
                f"{name!r} from who changes it; start it at {first!r} or before, or behind {last!r}"
            )


@dataclass(frozen=True)
class Homes:
    """`home[i]` is the place of the forward operator with which operator i moves.

    A forward operator's home is its own place; of one that looks at weights alone, its first reader's. A backward
    operator's is its twin's, a sum's without one the earliest of what it adds up. `free` operators are cheap and depend
    on samples, buffers and constants only (masks, positions): every stage that reads them makes its own.
    """

    graph: Graph

    @cached_property
    def readers(self) -> dict[str, list[int]]:
        """Value's maker or leaf -> places of the operators that read it."""
        found: dict[str, list[int]] = {}
        for i, operator in enumerate(self.graph.operators):
            for name in dict.fromkeys(ref.name for ref in operator.reads()):
                found.setdefault(name, []).append(i)
        return found

    @cached_property
    def free(self) -> frozenset[str]:
        """Names of the operators that every stage that reads them makes for itself."""
        graph = self.graph
        changed, results = {name for name, _ in graph.mutations}, {ref.name for ref in graph.results()}
        known = {b.name for b in graph.buffers if b.name not in changed} | {name for name, _ in graph.inputs}
        known |= {c.name for c in graph.constants if c.name != TANGENT}
        found: set[str] = set()
        for operator in graph.operators:
            plain = operator.target.startswith("aten.") and not is_contraction(operator)
            if plain and operator.name not in results and all(ref.name in known for ref in operator.reads()):
                found.add(operator.name)
                known.add(operator.name)
        return frozenset(found)

    @cached_property
    def home(self) -> tuple[int, ...]:
        """Of each operator the place of the forward operator with which it moves."""
        graph, last = self.graph, self.graph.forward_length - 1
        borrowed = {p.name for p in graph.parameters} | {b.name for b in graph.buffers}
        home = list(range(len(graph.operators)))
        for i, operator in enumerate(graph.operators):
            names = {ref.name for ref in operator.reads()}
            if operator.phase is Phase.FORWARD:
                borrowed |= {operator.name} if names and names <= borrowed else set()
                continue
            added = [home[graph.index[name]] for name in names if graph.index.get(name, -1) > last]
            home[i] = graph.index.get(operator.twin, min(added, default=last))
        for i in reversed(range(last + 1)):
            if graph.operators[i].name in borrowed:
                taken = [home[j] for j in self.readers.get(graph.operators[i].name, ()) if j <= last]
                home[i] = min(taken, default=i)
        return tuple(home)

    def summed(self, ref: Ref, readers: int = 0) -> tuple[tuple[Ref, ...], tuple[str, ...]]:
        """The values whose sum is a parameter's gradient `ref`, which so many operators read, and the names of the
        operators that only add them up."""
        place = self.graph.index.get(ref.name, -1)
        operator = self.graph.operators[place]
        if place < 0 or not adds(operator) or len(self.readers.get(ref.name, ())) != readers:
            return (ref,), ()
        parts = [self.summed(part, 1) for part in operator.reads()]
        names = [name for _, sums in parts for name in sums]
        return tuple(value for values, _ in parts for value in values), (*names, operator.name)


def homes_of(graph: Graph) -> Homes:
    """The homes of a graph's operators, worked out once."""
    return graph.once("homes", lambda: Homes(graph))


def adds(operator: Operator) -> bool:
    """Whether it is a backward operator that adds two values."""
    values = len(operator.arguments) == 2 and all(isinstance(a, Ref) for a in operator.arguments)
    return (
        operator.phase is Phase.BACKWARD and operator.target == "aten.add.Tensor" and values and not operator.keywords
    )
