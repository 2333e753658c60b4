"""What the catalogue says of workers that mix their weights with their neighbours', and of the graphs they stand in."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from partita.cluster.text import load_cluster
from partita.errors import PlanError
from partita.graph.graph import Graph
from partita.lowering.mixing_matrices import Matrix, drawn, graph_edges, metropolis, mixing_matrices_of
from partita.plan.check import check
from partita.plan.sync import GRAPHS, Gossip
from partita.program.layout import MASS
from partita.program.space import Space
from partita.recipes.catalogue import call
from partita.runs.assembly import train_in_process
from partita.runtime.workload import Workload
from partita.simulator.simulate import simulate
from partita.task import Task
from tests.captures import capture
from tests.checkpoints.unbroken import check_unbroken
from tests.priced import priced, whole_cores
from tests.programs import program_by
from tests.runtime.drifting import drifting, weights
from tests.small import cluster_of, perceptron


def tensor_of(matrix: Matrix) -> torch.Tensor:
    return torch.tensor(matrix, dtype=torch.float64)


def second(matrix: torch.Tensor) -> float:
    return float(torch.linalg.eigvalsh(matrix).abs().sort().values[-2])


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("ranks", [2, 3, 4, 6, 7, 12, 16, 23])
def test_weights_of_a_graph_are_doubly_stochastic(name: str, ranks: int) -> None:
    """DP-21: symmetric, rows and columns sum to 1, nothing negative, and connected: all reach the mean."""
    matrix = tensor_of(metropolis(graph_edges(name, ranks, cluster_of(ranks)), ranks))
    assert torch.equal(matrix, matrix.T)
    assert float((matrix.sum(0) - 1).abs().max()) <= 1e-12
    assert float(matrix.min()) >= 0
    assert second(matrix) < 1 - 1e-6


def test_weights_are_doubly_stochastic_where_degrees_differ() -> None:
    """DP-21: a star, and switches of two devices each, of which only the first are connected; by hand, too."""
    star = tensor_of(metropolis([(0, i) for i in range(1, 5)], 5))
    switches = tensor_of(metropolis(graph_edges("topology", 4, load_cluster("lab-2x2")), 4))
    for matrix in (star, switches):
        assert torch.equal(matrix, matrix.T)
        assert max(float((matrix.sum(axis) - 1).abs().max()) for axis in (0, 1)) <= 1e-12
    assert torch.allclose(star.diagonal(), torch.tensor([0.2, 0.8, 0.8, 0.8, 0.8]).double())
    assert torch.allclose(3 * switches, torch.tensor([[1, 1, 1, 0], [1, 2, 0, 0], [1, 0, 1, 1], [0, 0, 1, 2]]).double())


def test_graphs_by_name() -> None:
    assert graph_edges("torus", 6, cluster_of(6)) >= {(0, 1), (2, 3), (0, 2), (2, 4)}
    assert len(graph_edges("complete", 5, cluster_of(5))) == 10
    crossing = [
        edge for edge in graph_edges("topology", 4, load_cluster("lab-2x2")) if {*edge} & {0, 1} and {*edge} & {2, 3}
    ]
    assert {frozenset(edge) for edge in crossing} == {frozenset((0, 2))}


@pytest.mark.parametrize(
    "text",
    ["d_psgd", "d_psgd(neighbours=exponential)", "gossip(draws=3)", "gossip(partners=2,draws=2)",
     "gossip(direction=pair,draws=3)"],
)  # fmt: skip
def test_without_gradients_weights_are_powers_of_the_matrix(task: Task, graph: Graph, text: str) -> None:
    """DP-21, DP-23: x_k = W^k x_0 (1e-10)."""
    plan = call(text, graph, cluster_of(6))
    ranks, began = drifting(task, graph, plan, 4)
    expected = began
    for _ in range(4):
        for matrix in mixing_matrices_of(plan.sync[0].through, 6, cluster_of(6)):  # type: ignore[arg-type]
            expected = tensor_of(matrix) @ expected
    assert float((weights(ranks) - expected).abs().max()) <= 1e-10
    mean = (weights(ranks) - began).mean(0).abs().max()
    assert (float(mean) <= 1e-10) == (not text.startswith("gossip(") or "pair" in text), "pull changes the sum"


def test_a_ring_of_eight_shrinks_by_its_second_eigenvalue(task: Task, graph: Graph) -> None:
    """DP-21: |x - mean| by at most 0.8047 a step."""
    assert second(tensor_of(metropolis(graph_edges("ring", 8, cluster_of(8)), 8))) == pytest.approx(0.8047, abs=5e-5)
    spread = []
    for rounds in range(4):
        ranks, _ = drifting(task, graph, call("d_psgd", graph, cluster_of(8)), rounds)
        x = weights(ranks)
        spread.append(float((x - x.mean(0)).norm()))
    assert all(after <= 0.80474 * before for before, after in pairwise(spread))


@pytest.mark.parametrize("at", [1, 2, 3])
def test_the_mean_takes_the_mean_gradient(graph: Graph, at: int) -> None:
    """DP-21: mean x(k+1) = mean x(k) - eta mean g_i(x_i(k)) in each step, while the workers differ."""
    task = replace(perceptron(), optimizer=lambda p: torch.optim.SGD(p, lr=0.1))
    machines = cluster_of(4)
    captured = capture(task, precision="fp64")
    plan = call("d_psgd", captured, machines)
    before, after = (
        train_in_process(Workload(task, captured, precision="fp64"), plan, machines, steps, settle=False)[0]
        for steps in (at, at + 1)
    )
    order = torch.randperm(48, generator=torch.Generator().manual_seed(0)).tolist()[12 * at : 12 * at + 12]
    moved = dict.fromkeys((p.name for p in graph.parameters), torch.zeros(()))
    for rank, state in before.items():
        model = task.model().double()
        model.load_state_dict({name: state.leaves[name] for name in moved})
        samples = [task.data[i] for i in order[3 * rank : 3 * rank + 3]]
        x, y = torch.stack([s[0] for s in samples]).double(), torch.stack([s[1] for s in samples])
        task.loss(model, [x, y]).backward()
        for name, p in model.named_parameters():
            assert p.grad is not None
            moved[name] = moved[name] + 0.1 * p.grad / 4
    for name, step in moved.items():
        change = sum(after[r].leaves[name] - before[r].leaves[name] for r in before) / 4
        assert float((change + step).abs().max()) <= 1e-12
    assert not torch.allclose(before[0].leaves["0.weight"], before[2].leaves["0.weight"], rtol=1e-6)


@pytest.mark.parametrize(("text", "degree"), [("d_psgd", 2), ("d_psgd(neighbours=complete)", 5)])
def test_a_step_sends_weights_to_each_neighbour(graph: Graph, text: str, degree: int) -> None:
    """DP-21: deg n bytes out and as many in, on every link but none else."""
    machines, size = whole_cores(6, 1e9), graph.trained_bytes
    program = program_by(text, graph, machines)
    found = simulate(program, priced(graph, machines, [2]))
    assert found.wire_sent == (degree * size,) * 6
    assert {bytes_ for _, _, bytes_ in found.traffic} == {size}
    assert len(found.traffic) == 6 * degree


@pytest.mark.parametrize(
    ("text", "why"),
    [("gossip(partners=6)", "6 partners of 6 workers; 5 at most"),
     ("gossip(direction=pair,partners=2)", "average in pairs; 1 at most")],
)  # fmt: skip
def test_nobody_has_more_partners_than_there_are(graph: Graph, text: str, why: str) -> None:
    with pytest.raises(PlanError, match=why):
        check(call(text, graph, cluster_of(6)), graph, cluster_of(6))


@pytest.mark.parametrize("partners", [1, 2])
def test_an_exchange_of_gossip_takes_so_many_copies(graph: Graph, partners: int) -> None:
    """DP-23: r n bytes a rank and exchange, on average; 8 more a message with push-sum weights."""
    machines, size = whole_cores(6, 1e9), graph.trained_bytes
    for direction, more in (("pull", 0), ("push", 8)):
        text = f"gossip(direction={direction},partners={partners},draws=3)"
        program = program_by(text, graph, machines)
        sent = simulate(program, priced(graph, machines, [2])).wire_sent
        assert sum(sent) == pytest.approx(6 * partners * (size + more), abs=6)


@pytest.mark.parametrize(("ranks", "expected"), [(4, 0.2778), (8, 0.3980)])
def test_pulling_contracts_as_it_should(ranks: int, expected: float) -> None:
    """DP-23: E of the squared spread after a pull from one partner, j != i uniform, +-2 %; the sum stays in expectation
    only."""
    draw, count = random.Random(1), 2000
    x = torch.randn(ranks, 200, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    x -= x.mean(0)
    after = torch.stack([tensor_of(drawn(Gossip("pull"), ranks, draw)) @ x for _ in range(count)])
    means = after.mean(1)
    spread = (after - means[:, None]).square().sum((1, 2)).mean() / x.square().sum()
    assert float(spread) == pytest.approx(expected, rel=0.02)
    t = means.mean(0) / (means.std(0) / count**0.5)
    assert float(means.abs().max()) > 0.01
    assert float(t.abs().mean()) < 1.2


def test_what_is_pushed_is_conserved(task: Task, graph: Graph) -> None:
    """DP-23 with push-sum: the sum over ranks and their mass stay (1e-10), and all end at the mean."""
    plan = call("gossip(direction=push,draws=5)", graph, cluster_of(4))
    for rounds in (1, 3):
        ranks, began = drifting(task, graph, plan, rounds)
        masses = torch.cat([rank.state.kept[Space.ANCHOR, MASS] for rank in ranks])
        assert float((weights(ranks, Space.ANCHOR).sum(0) - began.sum(0)).abs().max()) <= 1e-10
        assert float((masses.sum() - 4).abs()) <= 1e-12
        assert float((masses - 1).abs().max()) > 0.01
    ranks, began = drifting(task, graph, plan, 12)
    assert float((weights(ranks) - began.mean(0)).abs().max()) <= 1e-6


@pytest.mark.parametrize("text", ["d_psgd", "gossip(direction=push,draws=2)", "gossip(draws=2,period=2)"])
def test_a_checkpoint_keeps_every_replica(task: Task, graph: Graph, text: str, tmp_path: Path) -> None:
    """DP-21, DP-23: weights, sums and masses, bit for bit on every rank."""
    machines = cluster_of(3)
    plan = call(text, graph, machines)
    check_unbroken(task, graph, plan, machines, (4, 8), tmp_path)
