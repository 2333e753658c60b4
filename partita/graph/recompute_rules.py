"""Which forward operators are computed again by rule: all of a block (full), or what is cheap (selective)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from partita.graph.flops import is_contraction
from partita.graph.graph import Graph
from partita.graph.kinds import kinds_of
from partita.graph.operator import Ref
from partita.graph.patterns import pattern_of, shares_memory
from partita.graph.recompute import recomputable


def whole_blocks(graph: Graph, starts: Sequence[int], *, last: bool = True) -> frozenset[str]:
    """Everything but what a later block's forward reads; without `last`, nothing of the last block, with which
    backward begins (ME-07; Chen et al. 2016)."""
    end = graph.forward_length
    kept = _crossing(graph, starts)
    names = {o.name for o in graph.operators[: end if last else starts[-1]]}
    return recomputable(graph) & names - kept


def cheap(graph: Graph, starts: Sequence[int]) -> frozenset[str]:
    """Pointwise operators, norms, softmax, views and attention's scores, where they come from what is kept anyway or
    computed again itself (Korthikanti et al. 2023); what crosses blocks is kept, or all of a residual stream would be
    computed again at once."""
    products, allowed = _of_weights(graph), recomputable(graph) - _crossing(graph, starts)
    direct = {ref for o in graph.operators[graph.forward_length :] for ref in o.reads()}
    found: set[str] = set()
    for operator in graph.operators[: graph.forward_length]:
        there = all(_there(graph, ref, direct, found) for ref in operator.reads())
        if operator.name in allowed and operator.name not in products and there:
            found.add(operator.name)
    return frozenset(found)


def _there(graph: Graph, ref: Ref, direct: set[Ref], again: set[str]) -> bool:
    """Whether a value can be had in backward without keeping it for this."""
    return ref.name in graph.leaves or ref.name in again or ref in direct


def _of_weights(graph: Graph) -> frozenset[str]:
    """Operators that are not cheap: without a pattern, and products but those of two activations."""
    known, kinds = {p.name for p in graph.parameters}, kinds_of(graph)
    plain = [pattern_of(graph.operators[graph.index[name]], graph) is None for name in kinds.names]
    found: set[str] = set()
    for operator, kind in zip(graph.operators[: graph.forward_length], kinds.number, strict=False):
        names = {ref.name for ref in operator.reads()}
        if names and names <= known and shares_memory(operator, graph):
            known.add(operator.name)
        scores = operator.target in ("aten.bmm.default", "aten.baddbmm.default") and not names & known
        if plain[kind] or (is_contraction(operator) and not scores):
            found.add(operator.name)
    return frozenset(found)


def _crossing(graph: Graph, starts: Sequence[int]) -> frozenset[str]:
    """What the forward pass of a later block reads, and whose memory that is."""
    block = [bisect_right(starts, place) for place in range(graph.forward_length)]
    found: set[str] = set()
    for place, operator in enumerate(graph.operators[: graph.forward_length]):
        for ref in operator.reads():
            if ref.name in graph.index and block[graph.index[ref.name]] < block[place]:
                found |= set(_roots(graph, ref.name))
    return frozenset(found)


def _roots(graph: Graph, name: str) -> Iterator[str]:
    """A value and what it is a view of."""
    while name in graph.index:
        yield name
        operator = graph.operators[graph.index[name]]
        if not shares_memory(operator, graph):
            return
        name = next(operator.reads()).name
