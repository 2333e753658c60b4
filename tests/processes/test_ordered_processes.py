"""Plans that order their messages, or send factors: real processes end where one process ends, in fp64."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors.torch import load_file

from partita import api
from partita.checkpoints.checkpoint import SavePolicy
from partita.graph.graph import Graph
from partita.lab.rehearsal import Rehearsal
from partita.oracles.check import TOLERANCE, difference
from partita.recipes.catalogue import call
from partita.runs.assembly import train_in_process
from partita.runtime.workload import Workload
from partita.task import Task
from tests.processes.broad import broad
from tests.processes.doubled import doubled
from tests.programs import program_by

TASK = "tests/processes/doubled.py:doubled"
STEPS = 8
PLANS = ("horovod(bucket_bytes=300)",)
SLOW = (
    "p3(slice_bytes=200)", "p3(servers=2,own=false,slice_bytes=200,microbatches=2)", "tictac(servers=2)",
    "tictac(order=tac)",
    "ps_sync(order=priority,bucket_bytes=400)", "bytescheduler(slice_bytes=200,credit_bytes=500)",
    "bytescheduler(servers=1,slice_bytes=200,credit_bytes=500)",
)  # fmt: skip


FACTORS = ("sfb", "adam", "poseidon(slice_bytes=2000,microbatches=2)")


@pytest.fixture(scope="module")
def graph() -> Graph:
    return api.graph_of(doubled())


@pytest.fixture(scope="module")
def crew(graph: Graph) -> Iterator[Rehearsal]:
    with Rehearsal(TASK, graph, api.cluster_of("local:4")) as found:
        yield found


def off_one_process(crew: Rehearsal, task: Task, graph: Graph, text: str, place: Path) -> float:
    """How far the weights of a run are from those of one process."""
    done = crew.train(call(text, graph, crew.cluster), steps=STEPS, keep=SavePolicy(str(place), 0, 1))
    single = api.cluster_of("local:1")
    states, _ = train_in_process(Workload(task, graph), call("single", graph, single), single, STEPS)
    weights = load_file(done.weights)
    return difference(weights, {name: states[0].leaves[name] for name in weights})


@pytest.mark.parametrize("text", [*PLANS, *(pytest.param(text, marks=pytest.mark.slow) for text in SLOW)])
def test_messages_in_their_own_order(crew: Rehearsal, graph: Graph, text: str, tmp_path: Path) -> None:
    """CS-03, CS-04, CS-05, CS-06, DP-33 in real processes: whoever sends what first, the weights are the same."""
    assert off_one_process(crew, doubled(), graph, text, tmp_path) <= TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("text", FACTORS)
def test_factors_instead_of_gradients(text: str, tmp_path: Path) -> None:
    """FM-01, FM-02, FM-03 in real processes, with some layers as factors and some as gradients."""
    graph, machines = api.graph_of(broad()), api.cluster_of("local:3")
    program = program_by(text, graph, machines)
    assert 0 < len(program.stages) < len(program.trained)
    with Rehearsal("tests/processes/broad.py:broad", graph, machines) as crew:
        assert off_one_process(crew, broad(), graph, text, tmp_path) <= TOLERANCE
