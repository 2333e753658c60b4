"""After which steps a run of several phases writes checkpoints."""

from __future__ import annotations

import pytest

from partita.recipes.catalogue import call
from partita.runtime.leg import intervals, legs
from tests.captures import capture
from tests.small import cluster_of, perceptron


@pytest.mark.parametrize(
    ("plan", "every", "kept"),
    [
        ("post_local_sgd(switch=4,period=2)", 2, [2, 4, 6, 8, 10]),
        ("post_local_sgd(switch=4,period=2)", 4, [4, 8, 10]),
        ("post_local_sgd(switch=4,period=3)", 3, [3, 7, 10]),  # the round that reaches 6 ends with step 7
        ("post_local_sgd(switch=4,period=2)", 7, [8, 10]),
    ],
)
def test_a_checkpoint_follows_the_round_that_reaches_a_multiple(plan: str, every: int, kept: list[int]) -> None:
    """Also where that round is the last of a phase; and the last step of all."""
    graph, machines = capture(perceptron()), cluster_of(2)
    parts, found = legs(graph, call(plan, graph, machines), machines, 10), list[int]()
    for place, leg in enumerate(parts):
        last = not any(later.whole for later in parts[place + 1 :])
        found += [leg.step + each.stop * leg.program.steps for each in intervals(leg, 0, every, last) if each.keep]
    assert found == kept
