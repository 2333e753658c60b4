"""Servers' messages in the order of their urgency: exact whatever comes when, and never behind what is less urgent."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from partita.errors import LoweringError
from partita.graph.graph import Graph
from partita.lowering.lower import lower
from partita.oracles.check import difference
from partita.program.instruction import Instruction, Send, Update
from partita.program.program import Program
from partita.program.timeline import Timeline
from partita.recipes.catalogue import call
from partita.runs.assembly import train_in_process
from partita.runtime.workload import Workload
from partita.simulator.simulate import simulate
from partita.task import Task
from tests.captures import capture
from tests.oracles.promises import kept
from tests.priced import batches_of, priced, whole_cores
from tests.programs import program_by
from tests.runtime.padded import padded
from tests.small import cluster_of

PLANS = ("p3(slice_bytes=200)",)
SLOW = (
    "p3(slice_bytes=100)", "p3(servers=2,own=false,slice_bytes=100,microbatches=2)", "tictac(order=tac,servers=2)",
    "ps_sync(order=priority,bucket_bytes=300,codec=onebit(where=server))",
)  # fmt: skip


@pytest.mark.parametrize("plan", [*PLANS, *(pytest.param(plan, marks=pytest.mark.slow) for plan in SLOW)])
def test_weights_are_those_of_one_process(plan: str) -> None:
    """CS-03, CS-04, CS-05: equal to lockstep, to 1e-9 in fp64; coded answers to their replay."""
    assert kept(plan, order=3) == ("lossy" if "codec" in plan else "exact")


@pytest.mark.slow
def test_weighted_losses_are_scaled_before_they_enter() -> None:
    assert kept("p3(slice_bytes=100)", task=padded()) == "exact"


@given(st.integers(0, 10_000), st.floats(0.05, 1.0))
@settings(max_examples=4, deadline=None)
def test_no_order_of_events_changes_a_bit(task: Task, graph: Graph, seed: int, slow: float) -> None:
    """CS-03: servers sum in the order of ranks, so all timings give the same bits."""
    machines = cluster_of(4)
    plan = call("p3(slice_bytes=200,servers=2)", graph, machines)
    first, _ = train_in_process(Workload(task, graph, precision="fp64"), plan, machines, 3)
    states, _ = train_in_process(Workload(task, graph, precision="fp64"), plan, machines, 3, order=seed, slow={1: slow})
    assert difference(states[0].leaves, first[0].leaves) == 0.0


@pytest.fixture(scope="module")
def heavy() -> Graph:
    """As VGG is: what is computed first has few weights, what is computed last has most of them."""
    wide = [nn.Linear(64, 64) for _ in range(8)]
    return capture(
        Task(
            name="heavy-end",
            model=lambda: nn.Sequential(*wide, nn.Linear(64, 1024), nn.Linear(1024, 512)),
            loss=lambda model, batch: model(batch).square().mean(),
            data=torch.utils.data.TensorDataset(torch.randn(64, 64)),  # type: ignore[arg-type]
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
            batch_size=16,
            collate=lambda samples: torch.stack([sample[0] for sample in samples]),
        )
    )


def simulated(graph: Graph, text: str, bandwidth: float = 2e7, latency: float = 0.0) -> tuple[Program, Timeline]:
    machines = whole_cores(4, bandwidth)
    program = program_by(text, graph, machines)
    return program, simulate(program, priced(graph, machines, batches_of(program), latency=latency))


def test_slices_overtake(heavy: Graph) -> None:
    """CS-03: while a slice waits, no less urgent one of its lane begins: it waits for one slice at most."""
    program, timeline = simulated(heavy, "p3(slice_bytes=40000)")
    sends, order = check_overtaking(program, timeline, 0, "push")
    assert order != [i.name for i in sends]


def check_overtaking(program: Program, timeline: Timeline, rank: int, lane: str) -> tuple[list[Instruction], list[str]]:
    """The sends of a rank's lanes that begin so, and their names in the order in which they began; while one of them
    waits, no less urgent one begins, and some do wait."""
    spans = {(span.name, span.round): span for span in timeline.spans if span.rank == rank}
    last = max(round for _, round in spans)
    sends = [i for i in program.role_of[rank].instructions if isinstance(i.act, Send) and i.lane.startswith(lane)]
    ready = {i.name: max(spans[after.name, last - after.rounds].end for after in i.after) for i in sends}
    begun = {i.name: spans[i.name, last].start for i in sends}
    waited = [i for i in sends if begun[i.name] > ready[i.name] + 1e-9]
    assert waited
    for i in waited:
        less = [j for j in sends if j.priority > i.priority and j.lane == i.lane]
        assert not [j for j in less if ready[i.name] + 1e-9 < begun[j.name] < begun[i.name] - 1e-9]
    return sends, [i.name for i in sorted(sends, key=lambda i: begun[i.name])]


@pytest.mark.parametrize("share", [0.0, 0.05])
@pytest.mark.parametrize(("bandwidth", "binds"), [(2e6, True), (2e7, True), (2e8, True), (2e9, False)])
def test_urgent_slices_save_time_where_the_last_layers_are_heavy(
    heavy: Graph, bandwidth: float, binds: bool, share: float
) -> None:
    """CS-03: no slower than WFBP on a profile such as VGG's, and than slices that keep their order, whatever binds,
    where the latency of a slice is at most a twentieth of its time; quicker where messages take longer than passes."""
    texts = ("p3(slice_bytes=40000)", "ps_sync(bucket_bytes=0)", "ps_sync(bucket_bytes=40000)")
    sliced, waiting, in_order = (
        simulated(heavy, text, bandwidth, share * 40_000 / bandwidth)[1].step_seconds for text in texts
    )
    assert sliced <= min(waiting, in_order) * (1 + 1e-9)
    assert (sliced < 0.8 * waiting) is binds


def test_servers_hold_slices_evenly(heavy: Graph) -> None:
    """CS-03: to a slice, which is whole rows."""
    machines = cluster_of(7)
    program = program_by("p3(servers=3,slice_bytes=40000)", heavy, machines)
    held: Counter[int] = Counter()
    for role, i in program.instructions():
        if isinstance(i.act, Update):
            held[role.ranks[0]] += program.bucket[i.act.bucket].size
    assert max(held.values()) - min(held.values()) <= max(bucket.size for bucket in program.buckets) <= 40000 + 4096


@pytest.mark.parametrize("order", ["tic", "tac"])
def test_all_workers_are_answered_in_forwards_order(heavy: Graph, order: str) -> None:
    """CS-04, CS-05: the model is a chain; a server gives all workers the same priorities, enforced as it sends."""
    program, timeline = simulated(heavy, f"tictac(order={order})")
    server = next(role for role in program.roles if role.keeps == "server")
    given = {i.name: i.priority for i in server.instructions if isinstance(i.act, Send)}
    for i in range(len(program.trained)):
        assert len({given[f"D{i}.{worker}"] for worker in range(3)}) == 1
    layers: dict[int, list[int]] = {}
    for i, bucket in enumerate(program.trained):
        layers.setdefault(int(bucket.pieces[0].parameter.split(".")[0]), []).append(given[f"D{i}.0"])
    # A layer waits for its weight and its bias: by counting these are equal, by timing one is first.
    forward = [(k, k) if order == "tic" else (2 * k, 2 * k + 1) for k in range(10)]
    assert [tuple(sorted(layers[k])) for k in sorted(layers)] == forward
    check_overtaking(program, timeline, server.ranks[0], "to0")


def test_orders_without_a_way_are_refused(graph: Graph) -> None:
    machines = cluster_of(4)
    with pytest.raises(LoweringError, match="message order tic"):
        lower(graph, call("ddp(order=tic)", graph, machines), machines)
