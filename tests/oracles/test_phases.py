"""Plans of several phases: what one leaves is what the next one begins with, or they are refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from partita.errors import LoweringError
from partita.graph.graph import Graph
from partita.lowering.lower import check_lowered, lower
from partita.plan.plan import Phase, Plan
from partita.recipes.catalogue import call
from tests.small import cluster_of, layers

FOUR = cluster_of(4)


def of(first: str, second: str, graph: Graph, steps: int = 2) -> Plan:
    """The plan of `steps` steps by one recipe before another one."""
    return replace(call(second, graph, FOUR), before=(Phase(steps, call(first, graph, FOUR)),))


@pytest.mark.parametrize(
    ("first", "second", "why"),
    [
        ("single", "ddp", r"begins on the ranks \[0, 1, 2, 3\], and the weights are on \[0\]"),
        ("ps_sync", "single", "on ranks without the optimizer's state"),
        ("ps_sync(own=false)", "ddp", "on ranks without the optimizer's state"),
        ("local_sgd", "ddp", "an optimizer's state of its own"),
        ("ps_async", "ps_sync", "go ahead of each other in one of them"),
        ("ddp", "ad_psgd", "go ahead of each other in one of them"),
        ("ddp(bucket_bytes=100)", "ddp", "cuts the parameters differently"),
        ("zero1", "ddp", "cuts the parameters differently"),
    ],
)  # fmt: skip
def test_a_phase_that_does_not_find_what_it_begins_with_is_refused(
    first: str, second: str, why: str, graph: Graph
) -> None:
    plan = of(first, second, graph)
    for carried_out in (lower, check_lowered):
        with pytest.raises(LoweringError, match=f"from the phase .* to .*{why}.*; .*take phases"):
            carried_out(graph, plan, FOUR)


def test_workers_without_an_optimizers_state_may_step_alike_again() -> None:
    graph = layers(2)
    assert not graph.optimizer.state
    assert len(lower(graph, of("local_sgd", "ddp", graph), FOUR)) == 2
