"""The curve of live bytes: what it is made of, where its peak is, and what was measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
from torch import nn
from torch.profiler import profile

from partita.arrays import Reals
from partita.cost import recording
from partita.cost.allocations import AllocationRecorder, Instance
from partita.cost.memory import changes_of, memory_curve, peak_memory, resident
from partita.graph.graph import Optimizer
from partita.lab.rehearsal import Rehearsal
from partita.lowering.lower import last_program
from partita.program.instruction import Act
from partita.program.program import Program, Role
from partita.program.timeline import PURPOSES, Span, Timeline
from partita.recipes.catalogue import call
from partita.runs.memory_trace import MemoryTrace, watched
from partita.simulator.simulate import simulate
from tests.captures import capture
from tests.priced import batches_of, priced, whole_cores
from tests.programs import program_by
from tests.small import layers, perceptron, two_layers

ADAM = Optimizer("Adam", (("exp_avg", 1.0, "float32"), ("exp_avg_sq", 1.0, "float32")))
PLANS = [
    "single", "ddp(bucket_bytes=40)", "ps_sync", "pipe_sgd(staleness=2)", "local_sgd(period=2)", "gpipe",
    "one_f_one_b(stages=2,data=2)", "interleaved(stages=2,chunks=2)", "zero_bubble", "zero1(bucket_bytes=40)",
    "zero2(bucket_bytes=40)", "zero3(bucket_bytes=40)",
]  # fmt: skip


def simulated(text: str) -> tuple[Program, Timeline]:
    graph = replace(layers(6), global_batch=64)
    machines = whole_cores(5, 1e6)
    program = program_by(text, graph, machines)
    return program, simulate(program, priced(graph, machines, batches_of(program)))


@pytest.mark.parametrize("text", PLANS)
def test_the_peak_is_the_highest_point_of_the_curve(text: str) -> None:
    program, timeline = simulated(text)
    assert len(timeline.memory) == program.size
    for rank in range(program.size):
        over, parts = timeline.memory_over_time[rank], timeline.memory_parts[rank]
        assert timeline.memory[rank] == max(size for _, size in over)
        assert [size for _, size in over] == [sum(moment) for moment in parts]
        assert min(min(moment) for moment in parts) >= 0
        assert [at for at, _ in over] == sorted(at for at, _ in over)
        spans = [span for span in timeline.spans if span.rank == rank]
        assert over[-1][0] <= max(span.end for span in spans)


def test_a_step_by_hand() -> None:
    """8 samples: x 8x4, h 8x6, y 8x2 floats; a 4x6, b 6x2. Gradients are taken by the updates, momentum stays."""
    graph = replace(two_layers(), optimizer=Optimizer("SGD", (("momentum", 1.0, "float32"),)))
    machines = whole_cores(1, 1e6)
    program = program_by("single", graph, machines)
    role = program.roles[0]
    start = np.arange(float(len(role.instructions)))[None]
    curve = memory_curve(program, graph, role, start, start + 1)
    found = {name: curve.parts[:, PURPOSES.index(name)] for name in PURPOSES}
    assert set(found["parameters"]) == {144 + 4}
    assert set(found["optimizer"]) == {144}
    assert max(found["activations"]) == 128 + 192 + 64 + 4
    assert (max(found["gradients"]), found["gradients"][-1]) == (144, 0)
    assert max(found["buckets"]) == max(found["messages"]) == max(found["workspace"]) == 0
    assert found["activations"][-1] == 0


def test_what_is_awaited_has_its_memory_from_the_start() -> None:
    """A receive is posted as soon as its lane is free, however late the message comes."""
    graph, machines = replace(layers(2), global_batch=16), whole_cores(2, 1e3)
    program = program_by("gpipe(microbatches=1)", graph, machines)
    role = program.role_of[1]
    names = [i.name for i in role.instructions]
    size = program.parcel["0>1.f/16"].size
    start = np.arange(len(names)) + np.array([[10.0], [40.0]])
    place = names.index("R0>1.f#0")
    for first in (0.0, 10.0):
        start[1, place] = 40.0 + first
        curve = memory_curve(program, graph, role, start, start + 1)
        held = curve.parts[:, PURPOSES.index("messages")]
        assert held[curve.seconds == 11.0 + place][-1] >= size


@pytest.mark.parametrize("text", [*PLANS, "gpipe(microbatches=4)", "zero3(bucket_bytes=40,recompute=full)"])
def test_what_was_written_at_one_pace_holds_at_another(text: str) -> None:
    """The same totals at all moments as if it were predicted anew, wherever links are slow instead of devices."""
    graph = replace(layers(6), global_batch=64)
    times = []
    for bandwidth in (1e8, 1e3):
        machines = whole_cores(5, bandwidth)
        program = program_by(text, graph, machines)
        costs = priced(graph, machines, batches_of(program))
        times.append([clocked(simulate(program, costs).spans, role) for role in program.roles])
    for role, fast, slow in zip(program.roles, *times, strict=True):
        found, anew = changes_of(program, graph, role, *fast).at(*slow), memory_curve(program, graph, role, *slow)
        assert found.seconds.tolist() == anew.seconds.tolist()
        last = np.r_[np.diff(anew.seconds) > 0, True]  # what happens in one moment has no order
        assert found.totals[last].tolist() == anew.totals[last].tolist()


def clocked(spans: Iterable[Span], role: Role) -> list[Reals]:
    """Starts and ends of the first rank's instructions, shape [rounds, instructions]."""
    when = {(s.name, s.round): (s.start, s.end) for s in spans if s.rank == role.ranks[0]}
    rounds, names = sorted({round for _, round in when}), [i.name for i in role.instructions]
    return [np.array([[when[name, round][k] for name in names] for round in rounds]) for k in (0, 1)]


@pytest.mark.parametrize("text", ["gpipe(microbatches=8)", "one_f_one_b(stages=2,data=2,shard=gradients)"])
def test_microbatches_that_go_through_the_same_are_written_once(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _, timeline = simulated(text)
    written: list[int] = []
    record = AllocationRecorder.record_environment

    def counted(recorder: AllocationRecorder, instances: Sequence[tuple[Instance, Act]]) -> int:
        written.append(len(instances))
        return record(recorder, instances)

    monkeypatch.setattr(AllocationRecorder, "record_environment", counted)
    simulated(text)
    once = len(written)
    monkeypatch.setattr(recording, "doing_of", lambda act: object())  # nothing does the same as anything else
    _, apart = simulated(text)
    assert len(written) - once > 2 * once
    assert apart.memory_over_time == timeline.memory_over_time
    assert apart.memory_parts == timeline.memory_parts


def test_a_watched_curve_is_laid_on_the_clock_of_another_run() -> None:
    spans = [Span(1, "compute", name, "Compute", 4, at, at + 1.0) for name, at in (("F", 0.0), ("B", 1.0), ("U", 5.0))]
    watch = MemoryTrace(30, ((0.5, 10), (1.0, 20), (1.5, 30), (3.5, 5), (6.0, 1)), tuple(spans))
    timed = [replace(s, round=9, start=100 + 2 * s.start, end=100 + 2 * s.end) for s in spans]
    other = [replace(s, rank=0, start=0.0) for s in timed]
    assert watch.laid_on([*other, *timed]) == ((101.0, 10), (102.0, 20), (103.0, 30), (107.0, 5), (112.0, 1))
    assert watch.laid_on(other) == ()
    swapped = [replace(s, start=103.0, end=104.0) if s.name == "F" else s for s in timed]  # behind what came behind it
    moments = [moment for moment, _ in watch.laid_on(swapped)]
    assert moments == sorted(moments)


def test_what_was_there_before_counts_and_what_comes_after_the_last_span_is_not_drawn() -> None:
    """100 bytes before it, of which 60 are freed in it; its begin is 5 s on the clock of spans."""
    second = 10**9
    changes = [(40, -30), (9, 100), (20, -60), (30, 5), (12, 7)]
    events = [
        SimpleNamespace(start_ns=lambda at=at: at * second, nbytes=lambda size=size: size, name=lambda: "[memory]")
        for at, size in changes
    ]
    events.append(SimpleNamespace(start_ns=lambda: 0, nbytes=lambda: 10**9, name=lambda: "aten::add"))
    seen = Mock(spec=profile)
    seen.profiler = SimpleNamespace(kineto_results=SimpleNamespace(events=lambda: events))
    spans = [Span(0, "compute", "F", "Compute", 0, 7.0, 16.0), Span(0, "compute", "B", "Compute", 0, 16.0, 25.0)]
    found = watched(seen, 10 * second, 5.0, spans)
    assert found.curve == ((7.0, 107), (15.0, 47), (25.0, 52))
    assert watched(seen, 15 * second, 5.0, ()).peak == found.peak == 107
    assert watched(seen, 25 * second, 5.0, ()).peak == 52


@pytest.mark.slow
def test_predicted_peaks_are_the_allocators() -> None:
    """Within 5 % on every rank, without fitting anything; the measured curve ends where its peak says."""
    from partita import api

    graph, cluster = api.graph_of("bytes-gpt"), api.cluster_of("local:2")
    with Rehearsal("bytes-gpt", graph, cluster) as rehearsal:
        for text in ("ddp", "ps_sync(own=false)", "one_f_one_b", "zero3(bucket_bytes=400000)"):
            plan = api.plan_of(text, graph, cluster)
            seen = rehearsal.memory(plan)
            predicted = api.simulate(graph, plan, cluster).memory
            assert [watch.peak for watch in seen] == pytest.approx(predicted, rel=0.05)
            assert all(max(size for _, size in watch.curve) <= watch.peak for watch in seen)
            assert all(watch.spans for watch in seen)


def test_the_next_samples_are_there_while_this_step_goes_on() -> None:
    """In the order of the text they are loaded when they are wanted, in that of the clock one step earlier."""
    graph, machines = two_layers(), whole_cores(2, 1e6)
    program = program_by("ddp", graph, machines)
    costs = priced(graph, machines, batches_of(program))
    assert simulate(program, costs).memory[0] == peak_memory(program, graph, 0) + 4 * 4 * 4


def test_state_is_divided_as_the_paper_says() -> None:
    """ME-01: 4 + 4 + 8/N bytes a parameter of fp32 Adam; ME-02: 4 + 12/N; ME-03: 16/N."""
    graph = replace(layers(8), global_batch=64, optimizer=ADAM)
    machines, psi = whole_cores(4, 1e6), 2 * 3 + 3 * 4 + 8 * 16
    for text, words in (("zero1", 8 + 8 / 4), ("zero2", 4 + 12 / 4), ("zero3", 16 / 4), ("ddp", 16)):
        program = program_by(f"{text}(bucket_bytes=0)", graph, machines)
        stays = int(resident(program, graph, program.roles[0]).sum()) - 4  # the tangent
        slack = 16 * len(program.trained) if text != "ddp" else 0
        assert words * psi <= stays <= words * psi + slack
    plans = [call(f"zero{n}(bucket_bytes=0)", graph, machines) for n in (1, 2, 3)]
    peaks = [peak_memory(last_program(graph, plan, machines), graph, 0) for plan in plans]
    assert peaks[0] > peaks[1] > peaks[2]


def test_statistics_and_squares_stay_as_weights_do() -> None:
    """By hand: weights of 6x16 + 16, 16 + 16, 16x3 + 3 numbers, two statistics of 16 and a count of 8 bytes; a server
    that keeps mean squares (adaptive DC-ASGD) has one more copy of all weights than one that does not."""

    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))

    graph, machines = capture(replace(perceptron(), name="normed", model=model)), whole_cores(3, 1e6)
    weights = 4 * (7 * 16 + 2 * 16 + 17 * 3)

    def stays(text: str) -> dict[str, int]:
        program = program_by(text, graph, machines)
        role = next((one for one in program.roles if one.serves), program.roles[0])
        return dict(zip(PURPOSES, resident(program, graph, role).tolist(), strict=True))

    constants = sum(len(c.data) for c in graph.constants)
    assert stays("ddp")["parameters"] == weights + 4 * 2 * 16 + 8 + constants
    plain, adaptive = (stays(f"dc_asgd(strength=0.5,decay={decay},own=false)") for decay in (0.0, 0.9))
    assert sum(adaptive.values()) - sum(plain.values()) == weights
