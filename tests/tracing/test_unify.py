"""Two graphs of a step, by hand, and the one that they are at any number of samples; or what tells that there is none.

The step is that of `two_layers` with one more operator, of which some part follows the number of samples.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from partita.graph.batch import substitute
from partita.graph.graph import Constant, Graph
from partita.graph.operator import Operator, Ref
from partita.graph.tensor import Affine, Ratio, Tensor
from partita.tracing.unify import Unlike, unify
from tests.small import two_layers

SIZES = (5, 7, 11)
NUMBER, PAIR = Tensor((), "float32"), Tensor((2,), "float32")
At = Callable[[int], Graph]


def step(more: Callable[[int], dict[str, Any]], **parts: Callable[[int], Any]) -> At:
    """The graph at a number of samples, with one more operator of such fields and with other parts of its own."""

    def at(batch: int) -> Graph:
        told = {"name": "more", "target": "aten.mul.Tensor", "arguments": (Ref("loss"), 2), "outputs": (NUMBER,)}
        graph = substitute(two_layers(), batch)
        place = graph.forward_length
        operators = (*graph.operators[:place], Operator(**(told | more(batch))), *graph.operators[place:])
        return replace(graph, **({"operators": operators} | {name: part(batch) for name, part in parts.items()}))

    return at


def literal(of: Callable[[int], Any]) -> At:
    return step(lambda n: {"arguments": (Ref("loss"), of(n))})


@pytest.mark.parametrize(
    ("of", "found"),
    [
        (lambda n: 3 * n, Affine(3)),
        (lambda n: 2 * n - 1, Affine(2, -1)),
        (lambda n: 0.1 * n, Ratio(0.1, 1)),
        (lambda n: 0.3 / n, Ratio(0.3, -1)),
        (lambda n: 2.0 / (n - 1), Ratio(2.0, -1, -1.0)),
        (lambda n: 2.0 / (48 * n - 1), Ratio(2.0 / 48, -1, -1 / 48)),
        (lambda n: -0.7 / (n + 3), Ratio(-0.7, -1, 3.0)),
        (lambda n: (n, 4), (Affine(1), 4)),
        (lambda n: 4, 4),
    ],
)
def test_a_literal_follows_the_samples(of: Callable[[int], Any], found: Any) -> None:
    graph = unify(literal(of), SIZES, 8)
    assert (graph.symbolic, graph.batch) == (True, 8)
    assert graph.operators[graph.index["more"]].arguments == (Ref("loss"), found)


def test_what_is_no_number_is_alike_at_two_sizes() -> None:
    """Each trace makes a NaN of its own, and no two are equal."""
    graph = unify(literal(lambda n: float("nan")), SIZES, 8)
    assert str(graph.operators[graph.index["more"]].arguments) == str((Ref("loss"), float("nan")))
    rest = unify(step(lambda n: {"arguments": (Ref("loss"), float("nan"), 2 * n - 1)}), SIZES, 8)
    assert rest.symbolic


def test_shapes_strides_and_inputs_follow_the_samples() -> None:
    turned = step(lambda n: {"outputs": (Tensor((4, n), "float32", (1, 4 * n)),)})
    graph = unify(turned, SIZES, 8)
    assert graph.tensor(Ref("more")) == Tensor((4, Affine(1)), "float32", (1, Affine(4)))
    assert dict(graph.inputs) == dict(two_layers().inputs)


def scalar(number: float) -> Constant:
    return Constant("constant.0", NUMBER, struct.pack("<f", number))


def test_a_constant_that_counts_samples_is_made() -> None:
    reads = {"arguments": (Ref("loss"), Ref("constant.0"))}
    given = step(lambda n: reads, constants=lambda n: (*two_layers().constants, scalar(2.0 * n)))
    graph = unify(given, SIZES, 8)
    assert (graph.operators[0].target, graph.operators[0].arguments) == ("aten.full.default", ((), Ratio(2.0, 1)))
    assert graph.constants == two_layers().constants


@pytest.mark.parametrize(
    ("at", "words", "others"),
    [
        (literal(lambda n: n * n), "more does not follow the number of samples linearly, as 11", False),
        (literal(lambda n: float(n * n)), "in more becomes 49.0 on 7 samples, which follows no law", False),
        (literal(lambda n: 2 if n == 5 else "two"), "in more becomes 'two' on 7 samples", False),
        (step(lambda n: {"keywords": (("size", n * n),)}), "more does not follow", False),
        (step(lambda n: {"outputs": (Tensor((n * n,), "float32"),)}), "more does not follow", False),
        (step(lambda n: {"outputs": (Tensor((4,), "float32", (n * n,)),)}), "more does not follow", False),
        (step(lambda n: {"outputs": (Tensor((), "int64" if n == 7 else "float32"),)}), "of float32 is one of int64",
         False),
        (step(lambda n: {"outputs": (NUMBER if n == 7 else None,)}), "more .* is more", False),
        (step(lambda n: {"target": "aten.add.Tensor" if n == 7 else "aten.mul.Tensor"}), r"is more \(aten.add", False),
        (step(lambda n: {"module": "a" if n == 7 else ""}), "more .* is more", False),
        (step(lambda n: {}, inputs=lambda n: (("input.0", Tensor((n * n, 4), "float32")),)),
         "the inputs do not follow the number of samples linearly, as 11", False),
        (step(lambda n: {}, constants=lambda n: (Constant("constant.0", PAIR, bytes([n] * 8)),)),
         "the constants change", False),
        (step(lambda n: {}, loss=lambda n: Ref("more" if n == 7 else "loss")), "the loss change", False),
        (step(lambda n: {}, weight=lambda n: Ref("more") if n == 7 else None), "the weight change", False),
        (step(lambda n: {}, gradients=lambda n: two_layers().gradients[: n - 5]), "the gradients change", False),
        (step(lambda n: {}, operators=lambda n: (*two_layers().operators,) * (n == 7)), "operators on 5 samples", True),
    ],
)  # fmt: skip
def test_what_follows_no_law_is_told(at: At, words: str, others: bool) -> None:
    with pytest.raises(Unlike, match=words) as told:
        unify(at, SIZES, 8)
    assert told.value.other_operators is others
