"""Buffers that the forward pass changes: whoever reads the old value when the new one is made reads a copy of it.

    traced      view_0 = view(c)         mul_0 = mul(c, h)    add_0 = the new c      exp_0 = exp(view_0)
    to run      clone_0 = clone(c)  view_0 = view(clone_0)  mul_0  add_0  exp_0      c is overwritten behind add_0

A new value has memory of its own as well: a leaf, or what looks at the memory of a buffer, is copied.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import count

from partita.graph.graph import Graph
from partita.graph.operator import Operator, Ref, Symbol, reading
from partita.graph.patterns import views_of

CONTIGUOUS = ("memory_format", Symbol("memory_format", "contiguous_format"))


def as_read(graph: Graph) -> Graph:
    """The graph with those copies; batch norms, which do not look at the statistics that they pass on, apart."""
    graph = _owned(graph)
    for name, new in graph.mutations:
        views, made = views_of(graph, name), graph.index[new.name]
        late = [
            operator
            for operator in graph.operators[made + 1 :]
            if "batch_norm" not in operator.target and any(ref.name in views for ref in operator.reads())
        ]
        if not late:
            continue
        moved = {operator.name for operator in late} | (views - {name})
        first = min(made, *(i for i, operator in enumerate(graph.operators) if Ref(name) in operator.reads()))
        copy = _copy(graph, Ref(name), graph.operators[first].module)
        operators = [
            reading(one, lambda ref, old=name, copy=copy: Ref(copy.name) if ref.name == old else ref)  # type: ignore[misc]
            if one.name in moved
            else one
            for one in graph.operators
        ]
        graph = replace(graph, operators=(*operators[:first], copy, *operators[first:]))
    return graph


def _owned(graph: Graph) -> Graph:
    """The graph in which every new value of a buffer has memory of its own."""
    changed, kept = [name for name, _ in graph.mutations], list[tuple[str, Ref]]()
    for name, new in graph.mutations:
        if new.name in graph.index and not any(new.name in views_of(graph, other) for other in changed):
            kept.append((name, new))
            continue
        at = graph.index.get(new.name, -1) + 1
        copy = _copy(graph, new, graph.operators[max(at - 1, 0)].module)
        graph = replace(graph, operators=(*graph.operators[:at], copy, *graph.operators[at:]))
        kept.append((name, Ref(copy.name)))
    return replace(graph, mutations=tuple(kept))


def _copy(graph: Graph, of: Ref, module: str) -> Operator:
    name = next(f"clone_{k}" for k in count() if f"clone_{k}" not in graph.index)
    tensor = replace(graph.tensor(of), strides=())
    return Operator(name, "aten.clone.default", (of,), (CONTIGUOUS,), (tensor,), module=module)
