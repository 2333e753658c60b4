"""Kinds of operators stand for all of them, and what is known of a step stays known for another minibatch."""

from __future__ import annotations

import pytest

from partita.graph.batch import of_minibatch, substitute
from partita.graph.cuts import liveness
from partita.graph.flops import bytes_moved, flops
from partita.graph.graph import Graph
from partita.graph.kinds import kinds_of
from partita.graph.precision import shortened
from partita.graph.signature import signature
from partita.lowering.recomputation import step_by_rule
from partita.plan.memory import Recompute
from tests.captures import capture
from tests.small import layers, perceptron, two_layers


def captured() -> Graph:
    return capture(perceptron())


@pytest.mark.parametrize("make", [two_layers, lambda: layers(6), captured, lambda: shortened(captured(), "bfloat16")])
@pytest.mark.parametrize("batch", [3, 8])
def test_an_operator_costs_what_its_kind_does(make: object, batch: int) -> None:
    """By signature, FLOPs and bytes, of every operator in the whole step for so many samples."""
    graph = make()  # type: ignore[operator]
    whole, kinds = substitute(graph, batch), kinds_of(graph)
    alike = [(signature(o, one), flops(o, one, batch), bytes_moved(o, one, batch)) for o, one in kinds.at(batch)]
    each = [(signature(o, whole), flops(o, whole, batch), bytes_moved(o, whole, batch)) for o in whole.operators]
    assert [alike[kind] for kind in kinds.number] == each


def test_layers_are_of_few_kinds() -> None:
    assert len(kinds_of(layers(12)).names) == len(kinds_of(layers(6)).names)


def test_another_minibatch_knows_what_is_known() -> None:
    graph = layers(4)
    lives = liveness(graph)
    other = of_minibatch(graph, 96)
    assert (other.global_batch, other.batch) == (96, graph.batch)
    assert liveness(other) is lives
    assert other.known is graph.known


def test_a_rewritten_step_is_of_its_own_minibatch() -> None:
    graph = layers(4)
    other = of_minibatch(graph, 96)
    for step in (graph, other):
        assert shortened(step, "bfloat16").global_batch == step.global_batch
        assert step_by_rule(step, Recompute.FULL, last=True).global_batch == step.global_batch
