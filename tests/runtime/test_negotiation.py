"""Sums that ranks agree on first: whatever is packed when, nobody waits for ever; weights are one process's."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate

import pytest

from partita.cluster.cluster import Cluster
from partita.errors import LoweringError, RunHung
from partita.graph.graph import Graph
from partita.lowering.lower import LoweredPhase, last_program, lower
from partita.oracles.check import checked, difference
from partita.plan.plan import Plan
from partita.program.instruction import After, Collective, Instruction, Load, Mark, Send
from partita.program.layout import WORD
from partita.program.program import Lane, Program, Role
from partita.program.timeline import Timeline
from partita.program.verify import verify
from partita.recipes.catalogue import call
from partita.runs.assembly import train_in_process
from partita.runtime import leg
from partita.runtime.workload import Workload
from partita.simulator.simulate import simulate
from partita.task import Task
from tests.oracles.promises import kept
from tests.plan.space import bytescheduler
from tests.priced import priced, whole_cores
from tests.programs import program_by
from tests.runtime.padded import padded
from tests.small import cluster_of, layers, perceptron

PLANS = ("horovod(bucket_bytes=300)", "bytescheduler(slice_bytes=300,credit_bytes=500)")
SLOW = (
    "bytescheduler(slice_bytes=100,credit_bytes=250)", "bytescheduler(servers=2,slice_bytes=100,credit_bytes=250)",
    "horovod(bucket_bytes=0,order=priority)",
)  # fmt: skip


@pytest.mark.parametrize("plan", [*PLANS, *(pytest.param(plan, marks=pytest.mark.slow) for plan in SLOW)])
def test_weights_are_those_of_one_process(plan: str) -> None:
    """DP-33, CS-06: over the barrier of the step, to 1e-9 in fp64."""
    assert kept(plan, order=5) == "exact"


@pytest.mark.slow
def test_weighted_losses_too() -> None:
    assert kept("bytescheduler(slice_bytes=100,credit_bytes=250)", cluster_of(3), task=padded()) == "exact"


@pytest.mark.slow
def test_the_point_in_the_space_runs() -> None:
    machines = cluster_of(4)
    assert checked(perceptron(), lambda graph: bytescheduler, machines)["max_difference"] <= 1e-9


def alone(role: Role, rank: int, draw: random.Random) -> Role:
    """The role of one rank, in which what is packed becomes known in an order drawn for it, once all is."""
    place = role.ranks.index(rank)
    packs = [i.name for i in role.instructions if i.name[0] == "P"]
    shuffled = draw.sample(packs, len(packs))
    marks = [Instruction(f"M{name[1:]}", Mark(), "shuffle", tuple(After(pack) for pack in packs)) for name in shuffled]
    body = []
    for one in role.instructions:
        act = replace(one.act, start=(one.act.start[place],)) if isinstance(one.act, Load) else one.act
        late = one.name[0] in "NTA"
        after = tuple(After(f"M{a.name[1:]}") if late and a.name[0] == "P" else a for a in one.after)
        body.append(replace(one, act=act, after=after))
    return Role(f"{role.name}-{rank}", (rank,), (*body, *marks), (*role.lanes, Lane("shuffle")), role.keeps)


def scrambled(program: Program, seed: int) -> Program:
    draw = random.Random(seed)
    return verify(replace(program, roles=tuple(alone(role, r, draw) for role in program.roles for r in role.ranks)))


def lowering(seed: int) -> Callable[[Graph, Plan, Cluster], tuple[LoweredPhase, ...]]:
    return lambda graph, plan, machines: tuple(
        replace(part, program=scrambled(part.program, seed)) for part in lower(graph, plan, machines)
    )


SEEDS = [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 100))]


@pytest.mark.parametrize("seed", SEEDS)
def test_any_order_in_which_ranks_are_ready_ends(
    task: Task, graph: Graph, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DP-33, CS-06: 100 drawn orders of readiness, each rank its own, and of events: no deadlock, the same weights."""
    machines = cluster_of(4)
    texts = ("horovod(bucket_bytes=0)", "bytescheduler(slice_bytes=100,credit_bytes=150)")
    plan = call(texts[seed % 2], graph, machines)
    first, _ = train_in_process(Workload(task, graph, precision="fp64"), plan, machines, 2)
    monkeypatch.setattr(leg, "lower", lowering(seed))
    states, _ = train_in_process(
        Workload(task, graph, precision="fp64"), plan, machines, 2, order=seed, slow={seed % 4: 0.1}
    )
    assert all(difference(state.leaves, first[0].leaves) <= 1e-12 for state in states.values())


def test_without_agreement_they_would_wait_for_ever(task: Task, graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    """The law above can fail: the same sums, one at a time as each rank is ready, and nobody asks anybody."""
    machines = cluster_of(4)
    plan = call("horovod(bucket_bytes=0)", graph, machines)

    def unasked(program: Program) -> Program:
        roles = []
        for role in scrambled(program, 3).roles:
            body = [
                replace(i, after=tuple(a for a in i.after if a.name[0] not in "GT")) if i.name[0] == "A" else i
                for i in role.instructions
            ]
            roles.append(replace(role, instructions=tuple(body)))
        return replace(program, roles=tuple(roles))

    wrong = lambda graph, plan, machines: tuple(  # noqa: E731
        replace(part, program=unasked(part.program)) for part in lower(graph, plan, machines)
    )
    monkeypatch.setattr(leg, "lower", wrong)
    with pytest.raises(RunHung):
        train_in_process(Workload(task, graph, precision="fp64"), plan, machines, 2)


def simulated(graph: Graph, text: str, machines: Cluster, latency: float = 0.0) -> tuple[Program, Timeline]:
    program = program_by(text, graph, machines)
    batches = sorted({segment.batch for segment in program.segments})
    return program, simulate(program, priced(graph, machines, batches, latency=latency))


def flights(program: Program, timeline: Timeline, rank: int = 0) -> list[tuple[float, float, int, str]]:
    """(start, end, bytes, name) of each sum of the last round on a rank."""
    acts = {i.name: i.act for i in program.role_of[rank].instructions}
    last = max(span.round for span in timeline.spans)
    return sorted(
        (span.start, span.end, program.payload(act), span.name)
        for span in timeline.spans
        if span.rank == rank and span.round == last and isinstance(act := acts[span.name], Collective | Send)
        and act.bucket != WORD
    )  # fmt: skip


@pytest.mark.parametrize("credit", [0, 60, 130, 400])
@pytest.mark.parametrize("served", [False, True])
def test_what_is_in_flight_is_bounded(credit: int, served: bool) -> None:
    """CS-06: at most the credit and one slice, and the credit is used; without any, one at a time."""
    graph, machines = layers(8, batch=24), whole_cores(5, 1e4)
    text = f"bytescheduler(servers={int(served)},slice_bytes=64,credit_bytes={credit})"
    program, timeline = simulated(graph, text, machines)
    found = flights(program, timeline)
    changes = sorted([(end, -size) for _, end, size, _ in found] + [(start, size) for start, _, size, _ in found])
    most = max(accumulate(size for _, size in changes))
    assert found
    slice_ = max(bucket.size for bucket in program.trained)
    assert most <= credit + slice_
    assert most >= max(credit, slice_)


def test_a_credit_of_one_slice_stops_and_waits() -> None:
    """CS-06: as one message at a time does; and with room for all each begins when it is there, first come first."""
    graph, machines = layers(8, batch=24), whole_cores(4, 1e4)
    one, waits = (
        simulated(graph, f"bytescheduler(slice_bytes=64,credit_bytes={credit})", machines) for credit in (1, 0)
    )
    assert flights(*one) == flights(*waits)
    program, timeline = simulated(graph, "bytescheduler(slice_bytes=64,credit_bytes=1000000)", machines)
    begun = [name for _, _, _, name in flights(program, timeline)]
    decided = {span.name: span.start for span in timeline.spans if span.name[0] == "T" and span.round == 7}
    assert [f"A{name[1:]}" for name in sorted(decided, key=lambda name: (decided[name], int(name[1:])))] == begun


def test_agreeing_costs_its_messages() -> None:
    """DP-33: two words of 8 bytes for each other rank and buffer, and their latency on the way of every sum."""
    graph, machines = layers(8, batch=24), whole_cores(4, 1e6)
    asked, plain = "horovod(bucket_bytes=0)", "ddp(bucket_bytes=0,order=fifo,collective=ring)"
    program, timeline = simulated(graph, asked, machines, latency=1e-3)
    _, alone = simulated(graph, plain, machines, latency=1e-3)
    buffers = len(program.trained)
    assert timeline.wire_sent[0] - alone.wire_sent[0] == 3 * 8 * buffers
    assert timeline.wire_sent[1] - alone.wire_sent[1] == 8 * buffers
    assert timeline.step_seconds > alone.step_seconds + 1e-3 * buffers


def test_fusion_bounds_the_number_of_sums() -> None:
    """DP-33: at most 2 ceil(n / fusion) sums a step."""
    graph, machines = layers(16, batch=24), cluster_of(4)
    n = graph.trained_bytes
    for fusion in (100, 256, 1000, 10**6):
        program = program_by(f"horovod(bucket_bytes={fusion})", graph, machines)
        sums = [i for i in program.role_of[1].instructions if isinstance(i.act, Collective)]
        assert len(sums) <= 2 * -(-n // fusion)


def test_all_ranks_sum_in_one_order() -> None:
    """DP-33: one at a time, as the first rank says."""
    graph, machines = layers(8, batch=24), whole_cores(4, 1e5)
    program, timeline = simulated(graph, "horovod(bucket_bytes=64,order=priority)", machines)
    orders = {tuple(name for _, _, _, name in flights(program, timeline, rank)) for rank in range(4)}
    assert len(orders) == 1


def test_urgent_sums_overtake_and_save_time() -> None:
    """CS-06: across the barrier, what forward reads first comes first."""
    graph, machines = layers(12, batch=24), whole_cores(4, 2e4)
    urgent = simulated(graph, "bytescheduler(slice_bytes=64,credit_bytes=64)", machines)
    program, timeline = urgent
    first = simulated(graph, "horovod(bucket_bytes=64)", machines)
    order = [int(name[1:]) for _, _, _, name in flights(program, timeline)]
    assert order != sorted(order)
    assert timeline.step_seconds <= first[1].step_seconds


def test_what_cannot_be_agreed_on_is_refused(graph: Graph) -> None:
    machines = cluster_of(4)
    with pytest.raises(LoweringError, match="negotiated sums with stages, codecs or sharded state"):
        lower(graph, call("horovod(shard=optimizer)", graph, machines), machines)


@pytest.mark.slow
@pytest.mark.parametrize("servers", [0, 1])
def test_tuned_sizes_are_no_worse_than_a_grids(servers: int) -> None:
    """CS-06: within 3 % of the best of a grid of slices and credits."""
    graph, machines = layers(12, batch=24), whole_cores(4, 2e4)
    costs = priced(graph, machines, (6, 8), latency=1e-3)

    def seconds(knobs: str) -> float:
        plan = call(f"bytescheduler(servers={servers},{knobs})", graph, machines, costs)
        return simulate(last_program(graph, plan, machines), costs).step_seconds

    grid = [seconds(f"slice_bytes={size},credit_bytes={size * k}") for size in (64, 128, 256, 800) for k in (1, 3, 8)]
    assert seconds("tune=true") <= 1.03 * min(grid)


def test_tuned_slices_of_servers_are_no_worse_than_a_grids() -> None:
    """CS-03: slices that are small enough to overtake, and no smaller."""
    graph, machines = layers(12, batch=24), whole_cores(4, 2e4)
    costs = priced(graph, machines, (6, 8), latency=1e-3)

    def seconds(knobs: str) -> float:
        plan = call(f"p3({knobs})", graph, machines, costs)
        return simulate(last_program(graph, plan, machines), costs).step_seconds

    assert seconds("tune=true") <= 1.03 * min(seconds(f"slice_bytes={size}") for size in (64, 128, 256, 800))
