"""Any order of lanes, any delays: the same bits, and never a deadlock."""

from __future__ import annotations

import pytest
import torch

from partita.graph.graph import Graph
from partita.recipes.catalogue import call
from partita.runs.assembly import carry_over, initial, make_rank, train_in_process
from partita.runtime.interleaving import advance
from partita.runtime.leg import Interval
from partita.runtime.workload import Workload
from partita.task import Task
from partita.transport.inprocess import InProcess, Rendezvous
from tests.captures import capture
from tests.programs import program_by
from tests.small import cluster_of

PLANS = (
    "single(microbatches=2)",
    "ddp(bucket_bytes=200)",
    "ps_sync(bucket_bytes=200)",
    "ps_sync(servers=2,own=false,bucket_bytes=100)",
    "pipe_sgd(bucket_bytes=200)",
    "pipe_sgd(staleness=2,warmup=1)",
    "local_sgd(period=2)",
    "diloco(period=2,fragments=2,lag=1,keep=0.5)",
    "d_psgd(bucket_bytes=200)",
    "gossip(direction=push,draws=2)",
)


@pytest.fixture(scope="module")
def graph(task: Task) -> Graph:
    return capture(task)


def weights(
    task: Task, graph: Graph, plan: str, order: int, slow: dict[int, float] | None = None
) -> dict[str, torch.Tensor]:
    machines = cluster_of(3)
    states, _ = train_in_process(
        Workload(task, graph), call(plan, graph, machines), machines, 4, order=order, slow=slow
    )
    return states[0].leaves


@pytest.mark.parametrize("plan", PLANS)
def test_bits_do_not_depend_on_the_order(task: Task, graph: Graph, plan: str) -> None:
    first = weights(task, graph, plan, 0)
    for order in range(1, 6):
        again = weights(task, graph, plan, order, {order % 3: 0.02})
        assert all(torch.equal(first[p.name], again[p.name]) for p in graph.parameters)


@pytest.mark.slow
@pytest.mark.parametrize("plan", PLANS)
def test_ten_thousand_orders(task: Task, graph: Graph, plan: str) -> None:
    first = weights(task, graph, plan, 0)
    for order in range(10_000 // len(PLANS) + 1):
        again = weights(task, graph, plan, order, {order % 3: 0.02 + order % 7 / 7})
        assert all(torch.equal(first[p.name], again[p.name]) for p in graph.parameters)


@pytest.mark.parametrize("plan", ["ps_sync", "ps_sync(servers=3,own=false)", "ddp"])
def test_a_round_ends_once(task: Task, graph: Graph, plan: str) -> None:
    """A rank's rounds are those of one lane, also where it serves beside its computing."""
    machines = cluster_of(4)
    program = program_by(plan, graph, machines)
    work, rendezvous, start = Workload(task, graph), Rendezvous(), initial(task, 0)[1]
    states = [carry_over(work, program, r, start, None) for r in range(program.size)]
    ways = [InProcess(r, rendezvous) for r in range(program.size)]
    ranks = [make_rank(work, program, r, states[r], way) for r, way in enumerate(ways)]
    advance(ranks, Interval(3), 0, None)
    assert [len(rank.ends) for rank in ranks] == [3 + program.drain] * program.size
