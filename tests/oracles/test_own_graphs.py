"""Graphs of plugins: whom each worker mixes its weights with, in turn, or a sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from partita.errors import OptionError, PlanError
from partita.graph.graph import Graph
from partita.lowering.lower import check_lowered, last_program
from partita.lowering.mixing_matrices import own_graph
from partita.oracles.check import checked
from partita.recipes.catalogue import call
from partita.task import Task, module_of
from tests.plugins import load_plugin
from tests.small import cluster_of

FOUR = cluster_of(4)
H = 0.5
PAIRS = [[H, H, 0, 0], [H, H, 0, 0], [0, 0, H, H], [0, 0, H, H]]
MIDDLE = [[1, 0, 0, 0], [0, H, H, 0], [0, H, H, 0], [0, 0, 0, 1]]
ALONE = [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]


def test_partners_are_mixed_with_in_turn(monkeypatch: pytest.MonkeyPatch, task: Task, graph: Graph) -> None:
    """Every second step: means of pairs, of others, of nobody. The last round is cut off."""
    load_plugin(monkeypatch, GRAPHS={"mine": lambda ranks: [PAIRS, MIDDLE, ALONE]})
    text = "d_psgd(neighbours=mine,period=2)"
    assert last_program(graph, call(text, graph, FOUR), FOUR).steps == 6
    found = checked(task, lambda graph: call(text, graph, FOUR), FOUR, steps=9)
    assert found["equal"]
    assert found["semantics"] == "consensus"


@pytest.mark.parametrize("ranks", [2, 4, 8, 16])
def test_one_peer_at_a_time_reaches_the_mean(ranks: int) -> None:
    """Assran et al. 2019: of 2^k ranks, after k exchanges."""
    made = own_graph("one_peer", module_of(Path("examples/own_graph.py").resolve()).GRAPHS["one_peer"])
    matrices = [torch.tensor(matrix, dtype=torch.float64) for matrix in made(ranks, cluster_of(ranks))]
    assert 2 ** len(matrices) == ranks
    mixed = torch.eye(ranks, dtype=torch.float64)
    for matrix in matrices:
        mixed = matrix @ mixed
    assert torch.equal(mixed, torch.full((ranks, ranks), 1 / ranks, dtype=torch.float64))


@pytest.mark.parametrize(("make", "says"), [
    (lambda ranks: 1 / 0, r"failed \(ZeroDivisionError: division by zero\); it takes the number of ranks"),
    (lambda ranks: None, "returned None for 2 ranks; it takes the number of ranks and returns a list of matrices"),
    (lambda ranks: [], r"returned \[\] for 2 ranks"),
    (lambda ranks: [[[1.0]]], r"returned \[\[\[1.0\]\]\] for 2 ranks; .*, with 2 rows of 2"),
    (lambda ranks: [[["a", "b"]] * 2], "returned .* for 2 ranks; .*, with 2 rows of 2"),
    (lambda ranks: [[[0.5, 0.5], [1.0, 1.0]]], "has 2 for the sum of row 1 of matrix 0 for 2 ranks; give the share"),
    (lambda ranks: [[[float("nan")] * 2] * 2], "has nan for the sum of row 0 of matrix 0 for 2 ranks"),
])  # fmt: skip
def test_a_graph_that_is_none_is_a_sentence(make: Any, says: str) -> None:
    with pytest.raises(PlanError, match=f"^the graph mine of a plugin {says}"):
        own_graph("mine", make)(2, cluster_of(2))


def test_what_is_no_graph_is_refused(graph: Graph) -> None:
    with pytest.raises(OptionError, match=r"^give a function of the number of ranks"):
        own_graph("mine", 5)
    with pytest.raises(
        PlanError, match=r"there is no graph 'star'; there are ring, torus, .*PARTITA_PLUGINS names add"
    ):
        check_lowered(graph, call("d_psgd(neighbours=star)", graph, FOUR), FOUR)
