"""Layers are found, forward and backward, and nothing else passes for one."""

from __future__ import annotations

from dataclasses import replace
from time import thread_time

import torch

from partita.graph.graph import Graph
from partita.graph.operator import Operator, Phase, Ref
from partita.graph.repeats import find_repeats
from partita.graph.tensor import Affine, Tensor
from partita.task import Task
from partita.zoo.data import Synthetic, Tokens
from partita.zoo.gpt import Gpt
from partita.zoo.tasks import predict
from tests.captures import capture

ROW = Tensor((Affine(1), 4), "float32")


def tower(layers: int, inside: int) -> Graph:
    """Blocks of a relu, products with the block's first value, and a sum with its input."""
    operators, stream = [], "input.0"
    for layer in range(layers):
        first = f"b{layer}.0"
        operators.append(Operator(first, "aten.relu.default", (Ref(stream),), outputs=(ROW,)))
        last = first
        for k in range(1, inside):
            operators.append(Operator(f"b{layer}.{k}", "aten.mul.Tensor", (Ref(last), Ref(first)), outputs=(ROW,)))
            last = f"b{layer}.{k}"
        operators.append(Operator(f"b{layer}.end", "aten.add.Tensor", (Ref(last), Ref(stream)), outputs=(ROW,)))
        stream = f"b{layer}.end"
    return Graph("tower", 2, tuple(operators), (), (), (), (("input.0", ROW),), Ref(stream), None, ())


def test_the_layers_of_a_transformer() -> None:
    task = Task("deep", lambda: Gpt(16, 12, 24, 2, 3), predict, Synthetic(16, Tokens(12, 16)), torch.optim.AdamW, 8)
    graph = capture(task)
    found = find_repeats(graph)
    assert [run.count for run in found] == [3, 3]
    assert graph.operators[found[0].start].phase is Phase.FORWARD
    assert graph.operators[found[1].start].phase is Phase.BACKWARD
    assert sum(run.length * run.count for run in found) > 0.8 * len(graph.operators)


def test_a_tower_is_one_run() -> None:
    (run,) = find_repeats(tower(5, 4))
    assert (run.start, run.length, run.count) == (0, 5, 5)


def test_a_literal_or_a_reading_that_differs_ends_the_run() -> None:
    graph = tower(4, 4)
    odd = list(graph.operators)
    odd[12] = replace(odd[12], arguments=(odd[12].arguments[1], odd[12].arguments[0]))
    assert [run.count for run in find_repeats(replace(graph, operators=tuple(odd)))] == [2]


def test_random_draws_differ_in_their_key_only() -> None:
    graph = tower(3, 2)
    dropped = [
        replace(o, target="partita.dropout", arguments=(o.arguments[0], 0.1, place))
        if o.target == "aten.relu.default"
        else o
        for place, o in enumerate(graph.operators)
    ]
    assert [run.count for run in find_repeats(replace(graph, operators=tuple(dropped)))] == [3]


def test_twenty_thousand_operators_take_less_than_a_second() -> None:
    graph = tower(200, 100)
    begun = thread_time()
    (run,) = find_repeats(graph)
    assert thread_time() - begun < 1.0
    assert (run.length, run.count) == (101, 200)
