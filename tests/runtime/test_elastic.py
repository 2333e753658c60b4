"""What the catalogue says of workers that are tied to a centre."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import groupby, pairwise
from pathlib import Path

import pytest
import torch

from partita.graph.graph import Graph
from partita.oracles.check import TOLERANCE, difference, ledger_of
from partita.oracles.reference import fresh
from partita.oracles.replay import replayed
from partita.plan.plan import Plan
from partita.plan.sync import Outer
from partita.program.space import Space
from partita.recipes.catalogue import call
from partita.runs.assembly import train_in_process
from partita.runtime.feed import Feed
from partita.runtime.workload import Workload
from partita.simulator.simulate import simulate
from partita.task import Task
from tests.captures import capture
from tests.checkpoints.unbroken import check_unbroken
from tests.priced import batches_of, priced, whole_cores
from tests.programs import program_by
from tests.runtime.drifting import drifting, weights
from tests.runtime.dying import Death, Dying
from tests.small import Line, Numbers, cluster_of

SIZE = 4


def plan_of(graph: Graph, text: str) -> Plan:
    return call(text, graph, cluster_of(SIZE))


@pytest.mark.parametrize("alpha", [0.15, 0.35, 0.45])
def test_springs_conserve_the_sum_and_contract(task: Task, graph: Graph, alpha: float) -> None:
    """DP-19: zero gradients; the sum of workers and centre stays (1e-12), their distance shrinks by 1 - (p + 1) alpha
    an exchange, and all end at the mean of all, exactly below alpha = 2 / (p + 1)."""
    plan = plan_of(graph, f"easgd(period=1,rate={alpha})")
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
    settled = float((weights(ranks) - total / (SIZE + 1)).abs().max()) <= 1e-6
    assert settled is (alpha < 2 / (SIZE + 1))


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
    one, _ = train_in_process(Workload(task, graph, precision="fp64"), loose, machines, 4, settle=False)
    other, _ = train_in_process(
        Workload(task, graph, precision="fp64"), plan_of(graph, "parallel_sgd"), machines, 4, settle=False
    )
    for rank in range(SIZE):
        assert all(torch.equal(one[rank].leaves[p.name], other[rank].leaves[p.name]) for p in graph.parameters)
    assert not torch.equal(one[0].leaves["0.weight"], one[1].leaves["0.weight"])


@pytest.mark.parametrize("name", ["easgd", "eamsgd", "admm"])
def test_a_centre_costs_an_all_reduce_a_period(graph: Graph, name: str) -> None:
    """DP-19, DP-20: 2 (p - 1) / p n bytes a rank every tau steps."""
    machines, size = whole_cores(4, 1e9), graph.trained_bytes
    program = program_by(f"{name}(period=2)", graph, machines)
    sent = simulate(program, priced(graph, machines, [3])).wire_sent
    assert sum(sent) == pytest.approx(2 * 3 * size / 2, abs=4)


def test_springs_hide_behind_the_next_period(graph: Graph) -> None:
    machines = whole_cores(4, 2e5)
    spent = []
    for text in ("easgd(period=2)", "local_sgd(period=2)", "parallel_sgd"):
        program = program_by(text, graph, machines)
        costs = priced(graph, machines, batches_of(program), operator=1e-2)
        spent.append(simulate(program, costs).step_seconds)
    assert spent[0] == pytest.approx(spent[2], rel=1e-6)
    assert spent[1] > spent[2] * 1.01


def line(monkeypatch: pytest.MonkeyPatch) -> tuple[Task, torch.Tensor]:
    """Least squares, each worker always on the same samples, and where they are least."""
    monkeypatch.setattr(Feed, "positions", lambda self, step, start, count: list(range(start, start + count)))
    data = Numbers(40)
    task = Task(
        name="line", model=Line, data=data, batch_size=40,
        loss=lambda model, batch: ((model(batch[0]) - batch[1]) ** 2).mean(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.15),
    )  # fmt: skip
    return task, torch.linalg.lstsq(data.x.double(), data.y.double()[:, None]).solution[:, 0]


@pytest.mark.parametrize(("text", "close"), [("admm(period=3,penalty=2)", True), ("parallel_sgd", False)])
def test_multipliers_lead_to_the_closed_form(text: str, close: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """DP-20, S = N: z* to 1e-4; the mean of workers that never agree does not get there."""
    task, best = line(monkeypatch)
    graph, machines = capture(task, precision="fp64"), cluster_of(SIZE)
    states, _ = train_in_process(Workload(task, graph, precision="fp64"), call(text, graph, machines), machines, 180)
    gap = float((states[0].leaves["row"] - best).abs().max())
    assert (gap <= 1e-4) == close, gap


def test_a_quorum_leads_to_the_closed_form(monkeypatch: pytest.MonkeyPatch) -> None:
    """DP-20, S = N / 2, tau = 5, one worker far behind: z* to 1e-4 within 500 rounds of each worker; a tenth of the
    rounds do not suffice."""
    task, best = line(monkeypatch)
    graph, machines = capture(task, precision="fp64"), cluster_of(SIZE + 1)
    plan, gaps = call("admm(period=3,penalty=2,need=2,staleness=4)", graph, machines), []
    for rounds in (100, 10):
        states, _ = train_in_process(
            Workload(task, graph, precision="fp64"), plan, machines, 3 * rounds, order=1, slow={2: 0.02}
        )
        gaps.append(float((states[0].leaves["row"] - best).abs().max()))
    assert gaps[0] <= 1e-4 < gaps[1], gaps


def test_a_quorum_of_all_is_lockstep(task: Task, graph: Graph) -> None:
    """DP-20: S = N, tau = 1 is synchronous ADMM (1e-8); S = N / 2 is not."""

    def weights_of(text: str, size: int) -> torch.Tensor:
        machines = cluster_of(size)
        states, _ = train_in_process(
            Workload(task, graph, precision="fp64", keyed=True), call(text, graph, machines), machines, 8, order=2
        )
        return torch.cat([states[0].leaves[p.name].flatten() for p in graph.trainable])

    together = weights_of("admm(period=2,bucket_bytes=400)", SIZE)
    for text, same in (("need=4,staleness=0", True), ("need=1,staleness=0", True), ("need=2,staleness=3", False)):
        gap = float((weights_of(f"admm(period=2,bucket_bytes=400,{text})", SIZE + 1) - together).abs().max())
        assert (gap <= 1e-8) == same, (text, gap)


@pytest.mark.parametrize(("need", "staleness"), [(2, 4), (3, 1), (1, 2)])
def test_a_master_goes_on_with_a_quorum_and_leaves_nobody_out_for_long(task: Task, need: int, staleness: int) -> None:
    """DP-20: each answer is to S workers or more, all with the same centre, and no worker with rounds to go is left out
    tau times in a row; with a worker far behind it is tau - 1 times."""
    graph, machines, most = capture(task, precision="fp64"), cluster_of(SIZE + 1), 0
    plan = call(f"admm(period=1,bucket_bytes=400,need={need},staleness={staleness})", graph, machines)
    for order in range(4):
        states, _ = train_in_process(
            Workload(task, graph, precision="fp64"), plan, machines, 12, order=order, slow={order % SIZE: 0.01}
        )
        ledger = ledger_of(states)
        by_bucket = [[m for m in ledger if m.bucket == name] for name in dict.fromkeys(m.bucket for m in ledger)]
        assert len(by_bucket) > 1
        came = [tuple((m.worker, m.turn) for m in merges) for merges in by_bucket]
        assert came[1:] == came[:-1]
        merges = by_bucket[0]
        edges = sorted({merge.read for merge in merges})
        groups = [{merge.worker for merge in merges[a:b]} for a, b in pairwise(edges)]
        last = {worker: max(i for i, m in enumerate(merges) if m.worker == worker) for worker in range(SIZE)}
        for group, start in zip(groups, edges, strict=False):
            assert len(group) >= min(need, sum(at >= start for at in last.values()))
        for worker, end in last.items():
            away = [start <= end and worker not in group for group, start in zip(groups, edges, strict=False)]
            most = max([most, *(len(list(run)) for out, run in groupby(away) if out)])
    assert most == staleness


@pytest.mark.parametrize(("need", "staleness"), [(4, 0), (3, 2)])
def test_a_gate_does_not_wait_for_the_dead(task: Task, need: int, staleness: int) -> None:
    """DP-20: a worker dies ahead of its change, on its way, or before it is answered; the others end all their rounds,
    and the weights are the replay of the ledger."""
    plan = f"admm(period=1,bucket_bytes=400,need={need},staleness={staleness})"
    for order, name in enumerate(("D0", "S0", "R0")):
        run = Dying(plan, SIZE + 1, 6, [Death(1, name, 1)], task=task, order=order)
        turns = Counter(merge.worker for merge in run.ledger if merge.bucket == run.ledger[0].bucket)
        assert {worker: turns[worker] for worker in (0, 2, 3)} == {0: 6, 2: 6, 3: 6}
        assert turns[1] < 6
        serial = replayed(fresh(task, seed=0, precision="fp64"), run.legs, run.ledger)
        assert difference(run.states[0].leaves, serial) <= TOLERANCE


@pytest.mark.parametrize("text", ["easgd(period=2)", "eamsgd(period=2)", "admm(period=2)"])
def test_a_checkpoint_keeps_centre_momentum_and_multipliers(
    task: Task, graph: Graph, text: str, tmp_path: Path
) -> None:
    """DP-19, DP-20: bit for bit on every rank."""
    plan, machines = plan_of(graph, text), cluster_of(SIZE)
    check_unbroken(task, graph, plan, machines, (2, 6), tmp_path)
