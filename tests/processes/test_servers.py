"""What real processes did through servers that wait for nobody is what their ledger says, replayed serially in fp64."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors.torch import load_file

from partita.checkpoints.checkpoint import SavePolicy
from partita.oracles.check import TOLERANCE, difference
from partita.oracles.reference import fresh
from partita.oracles.replay import replayed
from partita.recipes.catalogue import call
from partita.runtime.leg import legs
from tests.processes.crews import Crews
from tests.processes.doubled import doubled
from tests.processes.together import PLACE

STEPS = 12
TASK = "tests/processes/together.py:together"
PLANS = (
    "ps_async(bucket_bytes=400)",
    "ps_async(servers=2,bucket_bytes=200)",
    "ssp(staleness=1,bucket_bytes=400)",
    "softsync",
    "dynsgd(staleness=2)",
    "dc_asgd(strength=0.5,decay=0.9)",
    "downpour(push=2,fetch=2)",
    "easgd(servers=1,period=2)",
    "admm(need=2,period=2,bucket_bytes=400)",
    "ad_psgd(draws=3,bucket_bytes=400)",
    "ps_async(own=false,servers=0,bucket_bytes=400)",
    "ssp(own=false,servers=2,staleness=1,bucket_bytes=400)",
    "dc_asgd(own=false,strength=0.5,decay=0.9)",
    "backup_workers(own=false,servers=2,bucket_bytes=400)",
    "ssp(own=false,codec=onebit,bucket_bytes=400)",
    "ps_async(codec=threshold,bucket_bytes=400)",
    "backup_workers(bucket_bytes=400)",
)


@pytest.fixture(scope="module", autouse=True)
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(PLACE, str(tmp_path_factory.mktemp("begun")))
        yield


@pytest.mark.parametrize("plan", [PLANS[1], *PLANS[-2:], *(pytest.param(p, marks=pytest.mark.slow) for p in PLANS)])
def test_a_run_of_processes_equals_the_replay_of_its_ledger(crews: Crews, plan: str, tmp_path: Path) -> None:
    """DP-05, DP-07, DP-09, DP-10, DP-11, DP-14, DP-16, DP-17, DP-18, DP-19, DP-20, DP-22 over torch.distributed."""
    crew = crews(TASK, "local:4" if "own=false" in plan else "local:5")
    made = call(plan, crew.graph, crew.cluster)
    done = crew.train(made, steps=STEPS, keep=SavePolicy(str(tmp_path)))
    ledger, parts = done.timeline.ledger, legs(crew.graph, made, crew.cluster, STEPS)
    serial = replayed(fresh(doubled(), seed=crew.seed, precision="fp64"), parts, ledger)
    assert difference(load_file(done.weights), serial) <= TOLERANCE
    workers = {rank for rank, role in parts[0].program.role_of.items() if role.keeps == "model"}
    assert {merge.worker for merge in ledger} <= workers
    if plan.startswith("ps_async"):  # two read the first version, and one of them is applied after the other, maybe
        # after all of the other's turns, which is no steady state
        assert max(merge.staleness for merge in ledger) > 0
