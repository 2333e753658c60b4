"""Plans whose replicas differ: real processes end where all ranks in one process end, and go on from checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from partita import api
from partita.checkpoints.checkpoint import SavePolicy
from partita.graph.graph import Graph
from partita.lab.rehearsal import Rehearsal
from partita.recipes.catalogue import call
from partita.runs.assembly import train_in_process
from partita.runtime.workload import Workload
from tests.small import perceptron

TASK = "tests/small.py:perceptron"
STEPS = 9
PLANS = (
    "diloco(period=4,fragments=2,lag=1,keep=0.5)", "eamsgd(period=2)", "d_psgd", "gossip(direction=push,draws=2)",
    "diloco(period=2,codec=onebit)",
)  # fmt: skip
SLOW = (
    "local_sgd(period=2)", "post_local_sgd(switch=3,period=2)", "parallel_sgd", "diloco(period=2)", "easgd(period=2)",
    "admm(period=2)", "gossip(draws=2)",
)  # fmt: skip


@pytest.fixture(scope="module")
def graph() -> Graph:
    return api.graph_of(perceptron())


@pytest.fixture(scope="module")
def crew(graph: Graph) -> Iterator[Rehearsal]:
    with Rehearsal(TASK, graph, api.cluster_of("local:3")) as found:
        yield found


@pytest.mark.parametrize("text", [*PLANS, *(pytest.param(text, marks=pytest.mark.slow) for text in SLOW)])
def test_processes_end_where_one_process_ends(crew: Rehearsal, graph: Graph, text: str, tmp_path: Path) -> None:
    """DP-19, DP-20, DP-21, DP-23, DP-24, DP-26, EX-01 in real processes; a run that goes on from a checkpoint has
    the same bits."""
    plan = call(text, graph, crew.cluster)
    whole, part = tmp_path / "whole", tmp_path / "part"
    done = crew.train(plan, steps=STEPS, keep=SavePolicy(str(whole), 4, 9))
    states, losses = train_in_process(Workload(perceptron(), graph), plan, crew.cluster, STEPS)
    weights = load_file(done.weights)
    for name, weight in weights.items():
        torch.testing.assert_close(weight, states[0].leaves[name], rtol=1e-4, atol=1e-6)
    assert [loss for _, _, loss in done.loss] == pytest.approx(list(losses.values()), rel=1e-4)
    place = sorted((whole / "checkpoints").iterdir())[0]
    step = int(place.name.removeprefix("step-"))
    assert 4 <= step < STEPS
    again = crew.train(plan, steps=STEPS, keep=SavePolicy(str(part)), resume=str(place), since=step)
    assert all(torch.equal(weight, weights[name]) for name, weight in load_file(again.weights).items())
