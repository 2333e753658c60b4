"""What the catalogue says of workers that are tied to a centre."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from partita.graph.graph import Graph
from partita.lowering.lower import lower
from partita.plan.plan import Plan
from partita.plan.sync import Outer
from partita.program.instruction import Space
from partita.recipes.catalogue import call
from partita.runtime.checkpoint import Keep
from partita.runtime.feed import Feed
from partita.runtime.restore import open_checkpoint
from partita.runtime.run import train_in_process
from partita.simulator.simulate import simulate
from partita.task import Task
from partita.tracing.capture import capture
from tests.priced import priced, whole_cores
from tests.runtime.drifting import drifting, weights
from tests.small import Numbers, cluster_of

SIZE = 4


def plan_of(graph: Graph, text: str) -> Plan:
    return call(text, graph, cluster_of(SIZE))


def test_springs_conserve_the_sum_and_contract(task: Task, graph: Graph) -> None:
    """DP-19: zero gradients; the sum of workers and centre stays (1e-12), their distance shrinks by 1 - (p + 1) alpha
    an exchange, and all end at the mean of all."""
    alpha, plan = 0.15, plan_of(graph, "easgd(period=1,rate=0.15)")
    ranks, began = drifting(task, graph, plan, 0, own=False)
    start = weights(ranks, Space.ANCHOR)[0]
    total, apart = began.sum(0) + start, began.mean(0) - start
    for rounds in (1, 2, 5):
        ranks, _ = drifting(task, graph, plan, rounds, own=False)
        x, centre = weights(ranks), weights(ranks, Space.ANCHOR)
        assert (centre == centre[0]).all()
        assert float((x.sum(0) + centre[0] - total).abs().max()) <= 1e-12
        shrunk = (1 - (SIZE + 1) * alpha) ** rounds * apart
        assert float((x.mean(0) - centre[0] - shrunk).abs().max()) <= 1e-12
    ranks, _ = drifting(task, graph, plan, 100, own=False)
    assert float((weights(ranks) - total / (SIZE + 1)).abs().max()) <= 1e-6


@pytest.mark.parametrize("name", ["easgd", "eamsgd"])
def test_what_a_worker_gives_way_the_centre_gets(task: Task, name: str) -> None:
    """DP-19, asynchronous: the same d is sent and subtracted, so the sum of workers and centre stays (1e-12) whoever
    meets the centre when, and zero gradients bring all to its mean."""
    graph, machines = capture(task, precision="fp64"), cluster_of(SIZE)
    plan = call(f"{name}(servers=1,period=1,rate=0.15,bucket_bytes=400)", graph, machines)
    for rounds in (1, 3, 150):
        ranks, began = drifting(task, graph, plan, rounds, own=False)
        now = weights(ranks)
        assert float((now.sum(0) - began.sum(0)).abs().max()) <= 1e-12
        assert rounds > 1 or float((now - began).abs().max()) > 1e-2
    assert float((now - began.mean(0)).abs().max()) <= 1e-6


def test_without_springs_workers_train_alone(task: Task, graph: Graph) -> None:
    """DP-19: alpha = 0 is p independent trainings."""
    plan, machines = plan_of(graph, "easgd(period=2)"), cluster_of(SIZE)
    loose = replace(plan, sync=(replace(plan.sync[0], outer=Outer(0.0)),))
    one, _ = train_in_process(task, graph, loose, machines, 4, precision="fp64", settle=False)
    other, _ = train_in_process(
        task, graph, plan_of(graph, "parallel_sgd"), machines, 4, precision="fp64", settle=False
    )
    for rank in range(SIZE):
        assert all(torch.equal(one[rank].leaves[p.name], other[rank].leaves[p.name]) for p in graph.parameters)
    assert not torch.equal(one[0].leaves["0.weight"], one[1].leaves["0.weight"])


@pytest.mark.parametrize("name", ["easgd", "eamsgd", "admm"])
def test_a_centre_costs_an_all_reduce_a_period(graph: Graph, name: str) -> None:
    """DP-19, DP-20: 2 (p - 1) / p n bytes a rank every tau steps."""
    machines, size = whole_cores(4, 1e9), sum(p.tensor.size() for p in graph.trainable)
    program = lower(graph, call(f"{name}(period=2)", graph, machines), machines)[-1].program
    sent = simulate(program, priced(graph, machines, [3])).wire_sent
    assert sum(sent) == pytest.approx(2 * 3 * size / 2, abs=4)


def test_springs_hide_behind_the_next_period(graph: Graph) -> None:
    machines = whole_cores(4, 2e5)
    spent = []
    for text in ("easgd(period=2)", "local_sgd(period=2)", "parallel_sgd"):
        program = lower(graph, call(text, graph, machines), machines)[-1].program
        costs = priced(graph, machines, sorted({s.batch for s in program.segments}), operator=1e-2)
        spent.append(simulate(program, costs).step_seconds)
    assert spent[0] == pytest.approx(spent[2], rel=1e-6)
    assert spent[1] > spent[2] * 1.01


class Line(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.row = nn.Parameter(torch.zeros(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.row


@pytest.mark.parametrize(("text", "close"), [("admm(period=3,penalty=2)", True), ("parallel_sgd", False)])
def test_multipliers_lead_to_the_closed_form(text: str, close: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """DP-20, S = N: least squares, each worker always on the same samples, reach z* to 1e-4; the mean of workers that
    never agree does not."""
    monkeypatch.setattr(Feed, "positions", lambda self, step, start, count: list(range(start, start + count)))
    data = Numbers(40)
    task = Task(
        name="line", model=Line, data=data, batch_size=40,
        loss=lambda model, batch: ((model(batch[0]) - batch[1]) ** 2).mean(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.15),
    )  # fmt: skip
    graph, machines = capture(task, precision="fp64"), cluster_of(SIZE)
    states, _ = train_in_process(task, graph, call(text, graph, machines), machines, 180, precision="fp64")
    best = torch.linalg.lstsq(data.x.double(), data.y.double()[:, None]).solution[:, 0]
    gap = float((states[0].leaves["row"] - best).abs().max())
    assert (gap <= 1e-4) == close, gap


@pytest.mark.parametrize("text", ["easgd(period=2)", "eamsgd(period=2)", "admm(period=2)"])
def test_a_checkpoint_keeps_centre_momentum_and_multipliers(
    task: Task, graph: Graph, text: str, tmp_path: Path
) -> None:
    """DP-19, DP-20: bit for bit on every rank."""
    plan, machines = plan_of(graph, text), cluster_of(SIZE)

    def trained(**more: object) -> list[bytes]:
        states, losses = train_in_process(task, graph, plan, machines, 9, keyed=True, precision="fp64", **more)
        return [s.parameter[b].numpy().tobytes() for s in states.values() for b in s.parameter] + [str(losses).encode()]

    unbroken = trained(keep=Keep(str(tmp_path), 2, 9))
    for step in (2, 6):
        assert trained(saved=open_checkpoint(tmp_path / f"checkpoints/step-{step}")) == unbroken
