"""What codecs hold: residuals, velocities, bases, rows of messages and what hops encode, predicted and as allocated."""

from __future__ import annotations

import gc
import time
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from partita.cluster.cluster import Cluster, Device, Group, Link
from partita.cost.datasheet import datasheet_costs
from partita.cost.hops import hop_bytes
from partita.cost.memory import peak_memory, resident
from partita.graph.graph import Graph
from partita.lab.rehearsal import Rehearsal
from partita.program.instruction import Collective
from partita.program.program import Program
from partita.program.space import Kind
from partita.program.timeline import PURPOSES
from partita.recipes.catalogue import call
from partita.runs.assembly import carry_over, initial, make_rank
from partita.runtime.beside import LaneRun
from partita.runtime.leg import Interval
from partita.runtime.rank import Rank
from partita.runtime.worker import lanes
from partita.runtime.workload import Workload
from partita.searches.codings import codable, held_bytes
from partita.searches.fit import fit_of
from partita.searches.space import space_of
from partita.searches.stage_cuts import cuts_of
from partita.task import Task
from partita.transport.inprocess import InProcess, Rendezvous
from partita.transport.transport import Pending
from partita.wire.codec import SPECS
from tests.captures import capture
from tests.programs import program_by
from tests.small import Numbers, cluster_of

WORKERS = 3
CODED = [
    *(f"ddp(codec={name})" for name in ("fp16", "q8", "topk", "dgc", "onebit", "powersgd", "adaptive", "qsgd")),
    *(f"pipe_sgd(codec={name})" for name in ("topk", "onebit")),
    *(f"ps_sync(codec={name})" for name in ("fp16", "topk", "onebit", "onebit(where=server)", "adaptive")),
    "zero2(codec=topk)", "downpour(codec=topk)", "ef21", "ps_sync(codec=onebit(difference=1))",
]  # fmt: skip
REAL = [
    "ddp(codec=q8)", "ddp(codec=dgc)", "ddp(codec=adaptive)", "ddp(codec=topk+q8,collective=sparse_split_dense)",
    "pipe_sgd(codec=topk)", "pipe_sgd(codec=q8)", "pipe_sgd(codec=truncate)", "ps_sync(codec=fp16)",
    "ps_sync(codec=onebit)", "ps_sync(codec=onebit(where=server))",
]  # fmt: skip


def wide() -> Task:
    """More weights than activations, so that what codecs hold of gradients is most of the memory."""
    return Task(
        "wide", lambda: nn.Sequential(nn.Linear(6, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 3)),
        lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1]), Numbers(),
        lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9), 12,
    )  # fmt: skip


def lowered(text: str) -> tuple[Graph, Program]:
    graph, machines = capture(wide()), cluster_of(WORKERS)
    return graph, program_by(text, graph, machines)


@cache
def held(text: str) -> dict[str, int]:
    """Bytes that stay on the first rank, by what they are for."""
    graph, program = lowered(text)
    return dict(zip(PURPOSES, resident(program, graph, program.role_of[0]).tolist(), strict=True))


def allocated(text: str) -> list[int]:
    """Peak live bytes of each rank's steady rounds, which one thread carries out in turns."""
    gc.collect()  # what another plan's ranks held must not go meanwhile
    task, (graph, program), rendezvous = wide(), lowered(text), Rendezvous()
    work = Workload(task, graph)
    interval, values, turns = Interval(program.drain + 2), initial(task, 0)[1], [(0, 0)]
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        ranks = []
        for rank in range(program.size):
            turns.append((time.time_ns(), rank))
            state = carry_over(work, program, rank, values, None)
            ranks.append(make_rank(work, program, rank, state, InProcess(rank, rendezvous)))
        take_turns(ranks, interval, turns)
        steady = time.time_ns()
        for one in ranks:
            one.board.done.clear()
        take_turns(ranks, interval, turns)
    profiler: Any = seen.profiler
    events = [(e.start_ns(), e.nbytes()) for e in profiler.kineto_results.events() if e.name() == "[memory]"]
    live, peaks, begun = [0] * len(ranks), [0] * len(ranks), [at for at, _ in turns]
    for at, change in sorted(events):
        rank = turns[bisect_right(begun, at) - 1][1]
        live[rank] += change
        peaks = [max(a, b) for a, b in zip(peaks, live, strict=True)] if at >= steady else live.copy()
    return peaks


def take_turns(ranks: Sequence[Rank], interval: Interval, turns: list[tuple[int, int]]) -> None:
    """Every lane as far as it goes, one after the other; `turns` gets (since when, whose turn it is)."""
    runs = [(rank.rank, run) for rank in ranks for run in lanes(rank, interval, lambda _: False).values()]
    waits: dict[LaneRun, Pending] = {}
    with torch.no_grad():
        while runs:
            for rank, run in runs.copy():
                turns.append((time.time_ns(), rank))
                while run not in waits or waits[run].ready():
                    try:
                        waits[run] = next(run)
                    except StopIteration:
                        runs.remove((rank, run))
                        break


@pytest.mark.parametrize("text", CODED)
def test_predicted_peaks_are_the_allocators(text: str) -> None:
    graph, program = lowered(text)
    predicted = [peak_memory(program, graph, rank) for rank in range(program.size)]
    assert allocated(text) == pytest.approx(predicted, rel=0.1)


@pytest.mark.slow
def test_so_they_are_in_processes() -> None:
    from partita import api

    task, cluster = f"{__file__}:wide", api.cluster_of(f"local:{WORKERS}")
    graph = api.graph_of(task)
    with Rehearsal(task, graph, cluster) as rehearsal:
        for text in REAL:
            plan = api.plan_of(text, graph, cluster)
            seen = [watch.peak for watch in rehearsal.memory(plan)]
            assert seen == pytest.approx(api.simulate(graph, plan, cluster).memory, rel=0.1), text


def test_residuals_and_rows_by_hand() -> None:
    """Gradients of w bytes: a residual as large, and a row for each worker's message."""
    weights, numbers = held("ddp")["parameters"] - 4, (held("ddp")["parameters"] - 4) // 4
    plain = held("ddp")
    kept = -(-numbers // 2)
    chosen = held("ddp(codec=topk(ratio=0.5),bucket_bytes=1048576)")
    assert chosen["buckets"] == plain["buckets"] + weights
    assert chosen["messages"] == WORKERS * 8 * kept
    half = held("ddp(codec=fp16,bucket_bytes=1048576)")
    assert (half["buckets"], half["messages"]) == (plain["buckets"], 2 * numbers)
    varying = held("ddp(codec=adaptive,bucket_bytes=1048576)")
    assert varying["messages"] == WORKERS * -(-(8 * numbers + 16 + 8) // 8) * 8


def test_rows_of_several_rounds_and_of_parts_by_hand() -> None:
    """Where a gradient is on its way for `staleness` rounds, that of one more is made meanwhile. Of divided gradients a
    rank has a message for each owner and one of its own part from each rank; each begins at a multiple of eight numbers
    and, if its length varies, has that in front."""
    numbers = (held("ddp")["parameters"] - 4) // 4
    for staleness in (1, 2):
        chosen = held(f"pipe_sgd(staleness={staleness},codec=topk(ratio=0.5),bucket_bytes=1048576)")
        assert chosen["messages"] == (staleness + 1) * WORKERS * 8 * -(-numbers // 2)
    part = numbers // WORKERS
    assert (part * WORKERS, part % 8) == (numbers, 1)
    half = held("zero2(codec=fp16,bucket_bytes=1048576)")
    assert half["messages"] == 2 * WORKERS * 2 * (part + 7)
    varying = held("zero2(codec=adaptive,bucket_bytes=1048576)")
    assert varying["messages"] == 2 * WORKERS * (8 * part + 16 + 8)


def test_a_sum_hop_by_hop_takes_messages() -> None:
    """A ring of three: the part that came last; encoded, a message of each part besides."""
    _, program = lowered("ddp(collective=ring,bucket_bytes=1048576)")
    (act,) = program.roles[0].acts(Collective)
    part = -(-program.bucket[act.bucket].elements // WORKERS)
    assert hop_bytes(program, act, 0) == 4 * part
    assert hop_bytes(program, replace(act, algorithm="backend"), 0) == 0
    assert hop_bytes(program, replace(act, kind=Kind.ALL_GATHER), 0) == 0
    _, program = lowered("ddp(codec=q8,bucket_bytes=1048576)")
    (act,) = program.roles[0].acts(Collective)
    assert hop_bytes(program, act, 0) == program.bucket[act.bucket].elements + WORKERS * 4 + part + 4


@pytest.mark.parametrize("name", SPECS)
def test_the_formula_of_a_search_counts_them(name: str) -> None:
    """On a point of whole replicas and on one of divided state, with large buckets."""
    graph, machines = capture(wide()), cluster_of(WORKERS)
    costs = datasheet_costs(graph, machines, (1, 4, 12))
    trained = graph.trained_elements
    space = space_of(graph, machines, cuts_of(graph, machines, costs, 4).most, 4 * trained)
    wanted = (space.column("data") == WORKERS) & (space.buckets >= 4 * trained)
    for shard in (0, 1):
        some = np.intersect1d(np.flatnonzero(wanted & (space.column("shard") == shard)), codable(space, name))[:1]
        for i in some.tolist():
            point = space.call(i).removesuffix(")")
            more = [sum(held(text).values()) for text in (f"{point},codec={name})", f"{point})")]
            (formula,) = held_bytes(name, space.some([i]), graph)
            assert more[0] - more[1] == pytest.approx(formula, rel=0.1, abs=64)


def test_fit_counts_them() -> None:
    """A device that has room for a plan as it is, and not for what its codec holds."""
    graph = capture(wide())

    def machines(memory: int) -> Cluster:
        device = Device("gpu", cores=1.0, flops=(("fp32", 1e9),), memory=memory, memory_bandwidth=1e9)
        return Cluster("small", Group("root", (device,) * WORKERS, (Link(1e8),) * WORKERS))

    def fits(text: str, memory: int) -> bool:
        return fit_of(call(text, graph, machines(memory)), graph, machines(memory)).fits

    weights = held("ddp")["parameters"]
    needed = fit_of(call("ddp", graph, machines(2**30)), graph, machines(2**30)).needed
    assert fits("ddp", needed + weights)
    assert not fits("ddp(codec=topk)", needed + weights // 2)
    assert fits("ddp(codec=topk)", needed + weights * 3 // 2)
    assert not fits("ddp(codec=adaptive)", needed + weights * 3 // 2)
