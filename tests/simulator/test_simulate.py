"""What the prediction of a whole program must equal or obey, with costs made up by hand."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from partita.cluster.cluster import Cluster, Device, Group, Link
from partita.cost.costs import Costs, Host
from partita.cost.rings import bytes_sent
from partita.cost.touch import Touch
from partita.graph.graph import Graph
from partita.lowering.lower import last_program
from partita.plan.mesh import Mesh
from partita.plan.plan import Plan
from partita.plan.sync import Sync
from partita.plan.wire import Wire
from partita.program.program import Policy, Program
from partita.program.space import Kind
from partita.program.timeline import Span, Timeline
from partita.recipes.catalogue import RECIPES
from partita.simulator.simulate import simulate
from tests.priced import batches_of, machines_for, priced, signatures, whole_cores
from tests.programs import program_by
from tests.small import frozen, layers, two_layers

PARAMETERS = (4 * 6 + 6 * 2) * 4
COMPUTE = 10e-3
NONE = 1e12


def graph_for(text: str) -> Graph:
    """Two layers; more where a plan needs more stages than that gives."""
    return layers(6) if text.startswith("interleaved") else two_layers()


def program_of(text: str, size: int) -> Program:
    graph = graph_for(text)
    machines = machines_for(text, graph, whole_cores(size, 1.0))
    return program_by(text, graph, machines)


def costs_of(program: Program, size: int, bandwidth: float, **prices: float) -> Costs:
    """Ten operators that take `COMPUTE` seconds in all."""
    batches = sorted({segment.batch for segment in program.segments})
    return priced(graph_for(program.name), whole_cores(size, bandwidth), batches, operator=COMPUTE / 10, **prices)  # type: ignore[arg-type]


def step_of(text: str, size: int, bandwidth: float, **prices: float) -> float:
    program = program_of(text, size)
    return simulate(program, costs_of(program, size, bandwidth, **prices)).step_seconds


def ring_seconds(size: int, bandwidth: float) -> float:
    """Seconds of the whole gradient's ring on ports of `bandwidth` bytes a second."""
    return max(bytes_sent(Kind.ALL_REDUCE, PARAMETERS // 4, 4, size)) / bandwidth


@pytest.mark.parametrize("seconds", [0.02e-3, 0.5e-3, 2e-3, 8e-3, 50e-3])
@pytest.mark.parametrize("cores", [0.25, 0.5])
def test_a_quota_full_at_the_start_is_spent_before_steps_count(seconds: float, cores: float) -> None:
    """However short steps are, they get no more than the quota."""
    graph = two_layers()
    machines = Cluster("half", Group("root", (Device(cores=cores),) * 2, (Link(NONE, 0.0),) * 2))
    program = program_by("ddp", graph, machines)
    costs = priced(graph, machines, batches_of(program), operator=seconds / 10)
    assert simulate(program, costs).step_seconds == pytest.approx(seconds / cores, rel=0.01)


def test_a_lone_step_is_the_sum_of_its_operators() -> None:
    graph, machines = two_layers(), whole_cores(1, NONE)
    names = signatures(graph, 8)
    table = {name: (k + 1) * 1e-3 for k, name in enumerate(dict.fromkeys(names))}
    costs = Costs(graph, machines, table, *(Touch(0.0, 0.0),) * 4, sizes=(8,), instruction=0.0)
    program = program_by("single", graph, machines)
    assert simulate(program, costs).step_seconds == pytest.approx(sum(table[name] for name in names), rel=1e-12)


@pytest.mark.parametrize("ratio", [0.01, 0.3, 1.0, 3.0, 100.0])
@pytest.mark.parametrize("text", ["ddp", "ddp(bucket_bytes=24)", "ps_sync(servers=2,own=false,bucket_bytes=24)"])
def test_a_step_lasts_as_long_as_its_computing_and_its_bytes(text: str, ratio: float) -> None:
    """max(c, m) <= step <= c + m where nothing has latency; servers send only after all have pushed: c + 2 m."""
    m = COMPUTE * ratio
    program = program_of(text, 4)
    moved = max(simulate(program, costs_of(program, 4, NONE)).wire_sent)
    found = simulate(program, costs_of(program, 4, moved / m)).step_seconds
    ways = 2 if text.startswith("ps_sync") else 1
    assert max(COMPUTE, m) * (1 - 1e-9) <= found <= (COMPUTE + ways * m) * (1 + 1e-9)


def test_one_bucket_leaves_when_backward_ends() -> None:
    """c + m exactly: nothing is left to hide behind."""
    bandwidth = 3e4
    assert step_of("ddp", 4, bandwidth) == pytest.approx(COMPUTE + ring_seconds(4, bandwidth), rel=1e-9)


@pytest.mark.parametrize("workers", [2, 3, 5])
@pytest.mark.parametrize("bandwidth", [1e3, 3e4])
def test_a_server_is_as_slow_as_its_port(workers: int, bandwidth: float) -> None:
    """PM-10: c + 2 n / B where one worker has the server's port, c + 2 p n / B where all p share it; exact for one
    message each way, and no better than the first where gradients and weights are sliced. Workers that do not wait for
    each other are between the two."""
    program = program_of("ps_sync(bucket_bytes=1000000)", workers + 1)
    size = sum(bucket.size for bucket in program.buckets)
    best, worst = (COMPUTE + 2 * share * size / bandwidth for share in (1, workers))
    assert step_of("ps_sync(bucket_bytes=1000000)", workers + 1, bandwidth) == pytest.approx(worst, rel=1e-9)
    assert best * (1 - 1e-9) <= step_of("ps_sync(bucket_bytes=24)", workers + 1, bandwidth) <= worst * (1 + 1e-9)
    assert best * (1 - 1e-9) <= step_of("ps_async(bucket_bytes=1000000)", workers + 1, bandwidth) <= worst * 1.05


@pytest.mark.parametrize("ratio", [0.3, 1.0, 2.5])
@pytest.mark.parametrize("width", [1, 2, 3])
def test_the_period_of_pipe_sgd(width: int, ratio: float) -> None:
    """PM-17: max(c, m, (c + m) / K)."""
    c, m = COMPUTE, COMPUTE * ratio
    bandwidth = ring_seconds(4, 1.0) / m
    period = max(c, m, (c + m) / width)
    assert step_of(f"pipe_sgd(staleness={width - 1})", 4, bandwidth) == pytest.approx(period, rel=0.02)


@pytest.mark.parametrize("schedule", ["gpipe", "one_f_one_b"])
def test_a_step_of_stages_that_run_ahead_is_that_of_the_slowest(schedule: str) -> None:
    """Nothing comes back to the first stage, of frozen layers: it ends its rounds long before the others, which wait
    for nobody but each other."""
    graph, machines = frozen(layers(8), "a", "b", "0", "1", "2", "3"), whole_cores(4, NONE)
    program = program_by(f"{schedule}(stages=4,microbatches=4)", graph, machines)
    found = simulate(program, priced(graph, machines, (2,), operator=1e-3))
    ends: dict[int, dict[int, float]] = {rank: {} for rank in range(4)}
    for span in (span for span in found.spans if span.lane == "compute"):
        ends[span.rank][span.round] = max(span.end, ends[span.rank].get(span.round, 0.0))
    periods = [last - before for before, last in (sorted(each.values())[-2:] for each in ends.values())]
    assert min(periods) < 0.8 * max(periods)
    assert found.step_seconds == pytest.approx(max(periods), rel=1e-9)


def last_round(found: Timeline, rank: int = 0) -> dict[str, Span]:
    newest = max(span.round for span in found.spans)
    return {span.name: span for span in found.spans if span.rank == rank and span.round == newest}


@pytest.mark.parametrize("bandwidth", [3e3, 1e4, 4e4, 1e6])
@pytest.mark.parametrize("latency", [0.0, 0.4e-3])
@pytest.mark.parametrize("size", [2, 4])
def test_buckets_leave_one_after_the_other(bandwidth: float, latency: float, size: int) -> None:
    """DP-34: e_j = max(ready_j, e_{j-1}) + c_j, and what is exposed is e_last less the end of backward."""
    graph, machines = two_layers(), whole_cores(size, bandwidth)
    wire = Wire(bucket_bytes=24, first_bucket_bytes=16, slice_bytes=16)
    plan = Plan("sliced", Mesh((("data", size),)), sync=(Sync(wire=wire),))
    program = last_program(graph, plan, machines)
    assert len(program.buckets) >= 4
    found = simulate(program, costs_of(program, size, bandwidth, latency=latency))
    spans = last_round(found)
    before = 0.0
    for i, bucket in enumerate(program.buckets):
        ready, lasts = spans[f"P{i}"].end, max(bytes_sent(Kind.ALL_REDUCE, bucket.elements, 4, size)) / bandwidth
        before = max(ready, before) + 2 * (size - 1) * latency + lasts
        assert spans[f"A{i}"].end == pytest.approx(before, rel=1e-9)
    backward = spans[f"B{len(program.buckets) - 1}"].end
    assert found.step_seconds == pytest.approx(COMPUTE + before - backward, rel=1e-9)
    assert found.breakdown is not None
    assert found.breakdown.exposed_communication == pytest.approx(before - backward, rel=1e-6)


CALLS = (*RECIPES, "ddp(bucket_bytes=24,microbatches=2)", "ps_sync(servers=2,own=false,bucket_bytes=24)")


@pytest.mark.parametrize("text", CALLS)
def test_more_bandwidth_never_slows(text: str) -> None:
    steps = [step_of(text, 4, bandwidth, latency=1e-4) for bandwidth in (1e3, 3e3, 1e4, 3e4, 1e5, 1e6, 1e9)]
    assert all(faster <= slower * (1 + 1e-9) for slower, faster in pairwise(steps))


@pytest.mark.parametrize("text", CALLS)
def test_what_is_simulated_obeys_the_program(text: str) -> None:
    """Spans of a lane do not overlap, and come in the order of the text where the lane does not choose; what is waited
    for comes first, and the same input gives the same numbers."""
    program = program_of(text, 4)
    found = simulate(program, costs_of(program, 4, 2e4, latency=1e-4, sent=1e-6))
    assert simulate(program, costs_of(program, 4, 2e4, latency=1e-4, sent=1e-6)) == found
    for rank in range(program.size):
        spans, role = last_round(found, rank), program.role_of[rank]
        assert spans.keys() == role.on_name.keys()
        for i in role.instructions:
            for after in (a for a in i.after if not a.rounds):
                assert spans[after.name].end <= spans[i.name].start + 1e-12
        for lane in role.lanes:
            mine = [spans[i.name] for i in role.on(lane.name)]
            if lane.policy is not Policy.ORDER:
                mine.sort(key=lambda span: (span.start, span.end))
            assert all(before.end <= after.start + 1e-12 for before, after in pairwise(mine))


def test_local_steps_share_the_cost_of_agreeing() -> None:
    """DP-26: (c + m / tau) a step; the agreement hides behind nothing."""
    bandwidth, period = 2e4, 4
    expected = COMPUTE + ring_seconds(4, bandwidth) / period
    assert step_of(f"local_sgd(period={period})", 4, bandwidth) == pytest.approx(expected, rel=1e-9)


def test_a_processor_that_sends_does_not_compute() -> None:
    """Sending costs core-seconds of the one core that computes, so that pipelining hides the wire but not this."""
    sent = 2e-5
    core = 2 * (4 - 1) / 4 * PARAMETERS * (sent + sent)
    assert step_of("pipe_sgd", 4, NONE, sent=sent) == pytest.approx(COMPUTE + core, rel=0.01)


@pytest.mark.parametrize("text", ["pipe_sgd", "ddp"])
def test_devices_that_share_cores_send_on_these(text: str) -> None:
    """Four of them on two cores, which compute and send for all four, whether the two are beside each other or not."""
    sent = 2e-5
    program = program_of(text, 4)
    costs = replace(costs_of(program, 4, NONE, sent=sent), hosts=(Host((0, 1, 2, 3), 2.0),))
    core = 2 * (4 - 1) / 4 * PARAMETERS * (sent + sent)
    assert simulate(program, costs).step_seconds == pytest.approx(4 * (COMPUTE + core) / 2, rel=0.01)


@pytest.mark.parametrize("text", ["single", "ddp", "ps_sync", "pipe_sgd"])
def test_traffic_is_what_is_sent_by_receiver(text: str) -> None:
    program = program_of(text, 4)
    found = simulate(program, costs_of(program, 4, 1e6))
    sums = [sum(size for source, _, size in found.traffic if source == rank) for rank in range(program.size)]
    assert tuple(sums) == found.wire_sent
    if text in ("ddp", "pipe_sgd"):
        assert [(source, to) for source, to, _ in found.traffic] == [(0, 1), (1, 2), (2, 3), (3, 0)]


@pytest.mark.parametrize("text", ["single", "ddp"])
@pytest.mark.parametrize("cores", [0.5, 1.0])
def test_the_last_step_that_counts_has_the_next_ones_samples_loaded_beside_it(text: str, cores: float) -> None:
    """Loading that takes as much of the core as computing does, in every step: the last one was predicted without, and
    a step of 4 ms a tenth too quick."""
    graph = two_layers()
    machines = Cluster("some", Group("root", (Device(cores=cores),) * 2, (Link(NONE, 0.0),) * 2))
    program = program_by(text, graph, machines)
    costs = priced(graph, machines, batches_of(program), operator=2e-4)
    loading = replace(costs, load=Touch(2e-3, 0.0))
    found = simulate(program, loading)
    assert found.step_seconds == pytest.approx(4e-3 / cores, rel=0.01)
    assert found.cores[0] == pytest.approx(4e-3)
