"""Lanes that take whichever message comes first: in process in drawn orders, and over torch.distributed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from partita.recipes.catalogue import call
from partita.runs.assembly import initial, make_rank, train_in_process
from partita.runtime.interleaving import advance
from partita.runtime.leg import Interval
from partita.runtime.rank import Rank
from partita.runtime.state import make_state
from partita.runtime.workload import Workload
from partita.transport.inprocess import InProcess, Rendezvous
from tests.captures import capture
from tests.runtime.arrivals import ROUNDS, arriving
from tests.small import cluster_of, perceptron

ROOT = Path(__file__).parents[2]


def in_process(order: int, slow: dict[int, float]) -> tuple[dict[str, torch.Tensor], list[tuple[str, int]]]:
    """Weights of the first worker, and (receive, round) in the order in which the server took them."""
    task = perceptron()
    graph = capture(task)
    program, rendezvous, values = arriving(graph, 3), Rendezvous(), initial(task, 0)[1]
    ranks: list[Rank] = []
    for r in range(program.size):
        state = make_state(graph, program, program.role_of[r], task, values, "cpu", r)
        ranks.append(make_rank(Workload(task, graph), program, r, state, InProcess(r, rendezvous)))
    advance(ranks, Interval(ROUNDS), order, slow, record=lambda _: True)
    taken = [span for span in ranks[-1].spans if span.kind == "Receive"]
    return {name: ranks[0].state.leaves[name] for name in values}, [(span.name, span.round) for span in taken]


def lockstep() -> dict[str, torch.Tensor]:
    task, machines = perceptron(), cluster_of(4)
    graph = capture(task)
    states, _ = train_in_process(
        Workload(task, graph), call("ps_sync(bucket_bytes=400)", graph, machines), machines, ROUNDS
    )
    return states[0].leaves


def test_a_slow_worker_is_taken_last_and_the_sum_is_the_same() -> None:
    expected = lockstep()
    for late in range(3):
        weights, taken = in_process(late, {late: 1e-4})
        assert [name for name, round in taken if name.startswith("I0.") and round == 1][-1] == f"I0.{late}"
        assert all(torch.equal(weights[name], expected[name]) for name in weights)


def test_over_processes_the_sum_is_the_same_and_every_message_is_taken_once(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "tests.runtime.arrivals", "4", str(tmp_path / "meet"), str(tmp_path / "out")]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found, expected = torch.load(tmp_path / "out.weights"), lockstep()
    assert all(torch.allclose(found[name], expected[name], rtol=1e-6) for name in found)
    taken = [tuple(one) for one in json.loads((tmp_path / "out.order").read_text())]
    assert len(set(taken)) == len(taken) == 3 * ROUNDS * len({name.split(".")[0] for name, _ in taken})


def test_what_has_waited_longest_is_taken_first() -> None:
    """A lane that finds several messages does not prefer the one that is written first."""
    firsts = {in_process(order, {3: 0.1})[1][0][0] for order in range(8)}
    assert len(firsts) > 1


@pytest.mark.slow
def test_a_thousand_orders() -> None:
    expected = lockstep()
    for order in range(1000):
        weights, _ = in_process(order, {order % 4: 0.02})
        assert all(torch.equal(weights[name], expected[name]) for name in weights)
