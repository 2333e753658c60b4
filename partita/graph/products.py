"""Gradients that are products over samples: those of dense layers, dW = delta^T a, of which the factors may travel.

forward     y = x W                      factors of a batch of K rows: x, K x M, and dy, K x N
backward    t = x^T   dW = t dy          K (M + N) numbers say what M N do
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from partita.graph.graph import Graph
from partita.graph.operator import Operator, Phase, Ref, reading
from partita.graph.patterns import shares_memory


@dataclass(frozen=True)
class Product:
    """The gradient of `parameter` is what the operators `chain` make of `left` and `right`: a product, and views of
    it."""

    parameter: str
    left: Ref
    right: Ref
    chain: tuple[Operator, ...]
    rows: int
    columns: int


def products(graph: Graph) -> dict[str, Product]:
    """The parameters whose gradients are products over samples of two values that operators make, in the order in which
    backward completes them."""
    found = {}
    for parameter, ref in graph.gradients:
        chain: list[Operator] = []
        while ref.name in graph.index and ref not in graph.shared_gradients:
            operator = graph.operators[graph.index[ref.name]]
            chain.insert(0, operator)
            if operator.target == "aten.mm.default":
                if product := _product(graph, parameter, tuple(chain)):
                    found[parameter] = product
                break
            reads = list(operator.reads())
            if len(reads) != 1 or not shares_memory(operator, graph):
                break
            (ref,) = reads
    at = {name: graph.index[product.chain[-1].name] for name, product in found.items()}
    return {name: found[name] for name in sorted(found, key=lambda name: at[name])}


def _product(graph: Graph, parameter: str, chain: tuple[Operator, ...]) -> Product | None:
    left, right = chain[0].reads()
    if left.name not in graph.index or right.name not in graph.index or left == right:
        return None
    (m, k), (_, n) = graph.tensor(left).shape, graph.tensor(right).shape
    if not isinstance(m, int) or not isinstance(n, int) or isinstance(k, int):
        return None
    return Product(parameter, left, right, chain, m, n)


def samples_of(graph: Graph, product: Product, batch: int) -> int:
    """K: the rows of the factors of `batch` samples."""
    return graph.tensor(product.left).shape_at(batch)[1]


def taken_apart(graph: Graph, chosen: Sequence[Product]) -> tuple[Graph, tuple[Graph, ...]]:
    """The step, which gives the factors of the chosen products away, and for each of these the Graph that makes its
    gradient of them, whose number is their place in it."""
    sends = [
        (f"{ref.key}>{number}", ref)
        for number, product in enumerate(chosen)
        for ref in (product.left, product.right)
    ]  # fmt: skip
    made = tuple(_multiplying(graph, product, number) for number, product in enumerate(chosen))
    return replace(graph, sends=(*graph.sends, *sends)), made


def _taken(names: Mapping[Ref, str], ref: Ref) -> Ref:
    """What is read for `ref`: the input of that name, if it has one."""
    return Ref(names[ref]) if ref in names else ref


def _multiplying(graph: Graph, product: Product, number: int) -> Graph:
    names = {ref: f"{ref.key}>{number}" for ref in (product.left, product.right)}
    taken = partial(_taken, names)
    return replace(
        graph, name=f"{graph.name}*{number}", repeats=(), sends=(), mutations=(), weight=None, constants=(),
        operators=tuple(replace(reading(one, taken), phase=Phase.BACKWARD) for one in product.chain),
        gradients=((product.parameter, dict(graph.gradients)[product.parameter]),),
        inputs=tuple((name, graph.tensor(ref)) for ref, name in names.items()),
    )  # fmt: skip
