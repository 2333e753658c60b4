"""The check that many tests of plans share: their weights are those that their class promises."""

from __future__ import annotations

from partita.cluster.cluster import Cluster
from partita.oracles.check import TOLERANCE, checked
from partita.recipes.catalogue import call
from partita.task import Task
from tests.small import cluster_of, perceptron


def kept(
    text: str, machines: Cluster | None = None, *, task: Task | None = None, steps: int = 3, order: int = 0
) -> str:
    """The class of a plan; fails where its weights are not those of one process, or of what its class says, to 1e-9 in
    fp64."""
    place = machines or cluster_of(4)
    found = checked(task or perceptron(), lambda graph: call(text, graph, place), place, steps=steps, order=order)
    assert found["max_difference"] <= TOLERANCE, found
    semantics: str = found["semantics"]
    return semantics
