"""Every plan trains as its class promises, on a model with each kind of trouble."""

from __future__ import annotations

import pytest

from partita.recipes.catalogue import call
from partita.runtime.check import TOLERANCE, checked
from tests.small import cluster_of, perceptron

PLANS = (
    "single", "single(microbatches=3)", "ddp", "ddp(bucket_bytes=100)", "ps_sync", "ps_sync(servers=2,own=false)",
    "pipe_sgd", "pipe_sgd(staleness=2)", "pipe_sgd(warmup=2)", "local_sgd(period=2)", "local_sgd(period=1)",
)  # fmt: skip


@pytest.mark.parametrize("plan", PLANS)
def test_a_plan_equals_its_serial_training(plan: str) -> None:
    machines = cluster_of(3)
    found = checked(perceptron(), lambda graph: call(plan, graph, machines), machines, steps=5)
    assert found["max_difference"] <= TOLERANCE


def test_the_check_can_fail() -> None:
    """A plan that forgets to average is found out."""
    from dataclasses import replace

    machines = cluster_of(3)
    found = checked(perceptron(), lambda graph: replace(call("ddp", graph, machines), sync=()), machines)
    assert not found["equal"]
