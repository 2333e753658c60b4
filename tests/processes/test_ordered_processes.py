"""Plans that order their messages: real processes end where plain training in one process ends, in fp64."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors.torch import load_file

from partita import api
from partita.graph.graph import Graph
from partita.lab.rehearsal import Rehearsal
from partita.recipes.catalogue import call
from partita.runtime.check import TOLERANCE, difference
from partita.runtime.checkpoint import Keep
from partita.runtime.run import train_in_process
from tests.processes.doubled import doubled

TASK = "tests/processes/doubled.py:doubled"
STEPS = 8
PLANS = ("p3(slice_bytes=200)", "horovod(bucket_bytes=300)")
SLOW = (
    "p3(servers=2,own=false,slice_bytes=200,microbatches=2)", "tictac(servers=2)", "tictac(order=tac)",
    "ps_sync(order=priority,bucket_bytes=400)", "bytescheduler(slice_bytes=200,credit_bytes=500)",
    "bytescheduler(servers=1,slice_bytes=200,credit_bytes=500)",
)  # fmt: skip


@pytest.fixture(scope="module")
def graph() -> Graph:
    return api.graph_of(doubled())


@pytest.fixture(scope="module")
def crew(graph: Graph) -> Iterator[Rehearsal]:
    with Rehearsal(TASK, graph, api.cluster_of("local:4")) as found:
        yield found


@pytest.mark.parametrize("text", [*PLANS, *(pytest.param(text, marks=pytest.mark.slow) for text in SLOW)])
def test_processes_end_where_one_process_ends(crew: Rehearsal, graph: Graph, text: str, tmp_path: Path) -> None:
    """CS-03, CS-04, CS-05, CS-06, DP-33 in real processes: whoever sends what first, the weights are one process's."""
    done = crew.train(call(text, graph, crew.cluster), steps=STEPS, keep=Keep(str(tmp_path), 0, 1))
    single = api.cluster_of("local:1")
    states, _ = train_in_process(doubled(), graph, call("single", graph, single), single, STEPS)
    weights = load_file(done.weights)
    assert difference(weights, {name: states[0].leaves[name] for name in weights}) <= TOLERANCE
