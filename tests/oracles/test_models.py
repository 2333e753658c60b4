"""The plans against their serial trainings on real architectures: tied, rotary, with experts, with BatchNorm."""

from __future__ import annotations

import pytest

from partita.oracles.check import TOLERANCE, checked
from partita.recipes.catalogue import call
from tests.small import cluster_of
from tests.tracing.models import TASKS

PLANS = ("single", "ddp", "ps_sync", "pipe_sgd", "local_sgd(period=2)")


@pytest.mark.slow
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("name", TASKS)
def test_a_plan_equals_its_serial_training(name: str, plan: str) -> None:
    machines = cluster_of(3)
    found = checked(TASKS[name](), lambda graph: call(plan, graph, machines), machines)
    assert found["max_difference"] <= TOLERANCE
