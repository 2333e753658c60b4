"""Plans with codecs: equal to a serial replay with the same codecs, bytes as predicted, residuals kept."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch

from partita.errors import RunError
from partita.lowering.lower import lower
from partita.oracles.check import TOLERANCE, checked
from partita.program.space import Space
from partita.recipes.catalogue import call
from partita.runs.assembly import train_in_process
from partita.runtime import coding
from partita.runtime.coding import coding_key
from partita.runtime.workload import Workload
from partita.simulator.simulate import simulate
from partita.task import Task
from partita.wire import schedule
from tests.captures import capture
from tests.priced import priced, whole_cores
from tests.programs import program_by
from tests.runtime.padded import padded
from tests.runtime.test_shards import TROUBLES
from tests.small import Numbers, cluster_of, perceptron, two_layers

PLANS = (
    "ddp(codec=fp16)", "ddp(codec=bf16,collective=doubling)", "ddp(codec=q8,bucket_bytes=300)",
    "ddp(codec=q8(where=end))", "ddp(codec=truncate,collective=blocks)", "ddp(codec=onebit)", "ddp(codec=terngrad)",
    "ddp(codec=threshold)", "pipe_sgd(codec=topk(ratio=0.1),warmup=2)", "ddp(codec=fixed(bits=6,where=hop))",
    "ddp(codec=adacomp(bin=20))", "ddp(codec=topk(ratio=0.1),collective=sparse_doubling)",
    "ddp(codec=dgc(ratio=0.2),collective=kylix,bucket_bytes=300)",
    "pipe_sgd(codec=threshold,collective=sparse_split)", "ddp(codec=adacomp(bin=20),collective=sparse_split_dense)",
    "ddp(codec=topk(ratio=0.2)+q8,collective=sparse_split_dense)",
)  # fmt: skip
SLOW = (
    "ddp(codec=fixed(bits=6,overflow=0.01))", "ddp(codec=dettmers8)", "ddp(codec=qsgd(group=50))", "ddp(codec=dorefa)",
    "ddp(codec=adaptive(ratio=0.1))", "pipe_sgd(codec=inceptionn)",
)  # fmt: skip

STAGED = (
    "one_f_one_b(stages=2,data=2,microbatches=2,bucket_bytes=300,codec=q8)",
    "zero_bubble(stages=2,data=2,microbatches=3,bucket_bytes=300,codec=onebit)",
    "interleaved(stages=2,data=2,microbatches=2,codec=powersgd(rank=1))",
    "gpipe(stages=2,data=2,microbatches=2,codec=topk(ratio=0.1),recompute=full)",
    "torchgpipe(stages=2,data=2,codec=fp16,collective=doubling)", "gpipe(stages=2,data=2,codec=q8,collective=halving)",
    "one_f_one_b(stages=2,data=2,codec=threshold,bucket_bytes=300)",
)  # fmt: skip

OWNED = (
    "zero1(codec=bf16)", "zero1(codec=q8,bucket_bytes=300)", "zero2(codec=q8(where=end),microbatches=2)",
    "zero2(codec=onebit,microbatches=2,bucket_bytes=300)", "zero3(codec=terngrad,microbatches=2,bucket_bytes=300)",
    "zero3(codec=fixed(bits=6,where=hop),microbatches=2)", "zero2(codec=threshold,bucket_bytes=300)",
    "zero1(codec=topk(ratio=0.1))",
    *(
        pytest.param(f"zero2(codec={codec})", marks=pytest.mark.slow)
        for codec in (
            "qsgd(group=50)", "adacomp(bin=20)", "dettmers8", "dorefa", "adaptive(ratio=0.1)", "inceptionn", "truncate",
        )
    ),
)  # fmt: skip
BOTH = (
    "one_f_one_b(stages=2,data=2,shard=gradients,microbatches=2,bucket_bytes=300,codec=onebit)",
    "zero_bubble(stages=2,data=2,shard=optimizer,microbatches=2,bucket_bytes=300,codec=q8)",
    pytest.param(
        "gpipe(stages=2,data=2,shard=parameters,microbatches=2,codec=terngrad)", marks=pytest.mark.slow
    ),
)  # fmt: skip


@pytest.mark.parametrize("plan", OWNED)
def test_owners_equal_their_replay(plan: str) -> None:
    """ME-01, ME-02, ME-03: each rank's part is the sum of what all said of it, as often as gradients are scattered."""
    assert replayed(perceptron(), plan, 3) <= TOLERANCE


@pytest.mark.parametrize(
    "plan", ["ddp(codec=q8)", "zero1(codec=truncate)", "zero3(codec=fixed(bits=6,where=hop),microbatches=2)"]
)
def test_rings_in_strands_equal_their_replay(plan: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long messages go in two strands, each of which is encoded by itself."""
    one = bytes_of(plan)
    monkeypatch.setattr(schedule, "HALF", 8)
    assert replayed(perceptron(), plan, 3) <= TOLERANCE
    assert (bytes_of(plan) > one) is ("truncate" not in plan)  # a scale for each part, twice as many


@pytest.mark.parametrize(
    ("plan", "rounds"), [("pipe_sgd(codec=fixed)", 2), ("ddp(codec=fixed)", 1), ("pipe_sgd(codec=powersgd)", 1)]
)
def test_a_round_is_encoded_while_the_one_before_is_on_its_way(plan: str, rounds: int) -> None:
    """Codings of two rounds under way are kept apart; PowerSGD begins with what the last round came to."""
    graph, machines = capture(perceptron()), cluster_of(3)
    (*_, phase) = lower(graph, call(plan, graph, machines), machines)
    (role,) = phase.program.roles
    encode = next(i for i in role.instructions if i.name == "E0")
    assert next(after.rounds for after in encode.after if after.name == "D0") == rounds
    assert {coding.slots for coding in phase.program.codings} == {rounds}
    assert replayed(perceptron(), plan, 5) <= TOLERANCE


def bytes_of(plan: str) -> int:
    """Bytes that rank 0 sends in a step of the perceptron on three devices."""
    graph, machines = capture(perceptron()), cluster_of(3)
    (phase,) = lower(graph, call(plan, graph, machines), machines)
    batches = sorted({segment.batch for segment in phase.program.segments})
    return simulate(phase.program, priced(graph, machines, batches)).wire_sent[0]


@pytest.mark.parametrize("plan", BOTH)
def test_owners_among_the_replicas_of_stages_equal_their_replay(plan: str) -> None:
    assert replayed(perceptron(), plan, 4) <= TOLERANCE


def test_owners_of_whole_tensors_equal_their_replay() -> None:
    """EX-06: a rule that mixes elements; a message may be empty."""
    assert replayed(TROUBLES["lamb"], "zero1(bucket_bytes=100,codec=onebit)", 3) <= TOLERANCE


@pytest.mark.parametrize("plan", STAGED)
def test_replicas_of_stages_equal_their_replay(plan: str) -> None:
    """Each stage's ranks sum up their own buckets, with residuals of their own."""
    assert replayed(perceptron(), plan, 4) <= TOLERANCE


def replayed(task: Task, plan: str, size: int) -> float:
    """How far a lossy plan's weights end from its replay's."""
    machines = cluster_of(size)
    found = checked(task, lambda graph: call(plan, graph, machines), machines, steps=4)
    assert found["semantics"] == "lossy"
    return float(found["max_difference"])


@pytest.mark.parametrize("plan", [*PLANS, *(pytest.param(plan, marks=pytest.mark.slow) for plan in SLOW)])
def test_a_lossy_plan_equals_its_replay(plan: str) -> None:
    """QU-01, QU-02, QU-04, QU-05, QU-06, QU-07, QU-11, QU-13, QU-14, QU-15, SP-01, SP-02, SP-04, CO-08, CO-09: weights
    of the serial recurrence on what the codecs left."""
    assert replayed(perceptron(), plan, 3) <= TOLERANCE


@pytest.mark.parametrize(
    ("plan", "size"),
    [
        ("ddp(codec=onebit)", 3), pytest.param("pipe_sgd(codec=q8)", 3, marks=pytest.mark.slow),
        ("one_f_one_b(stages=2,data=2,microbatches=3,bucket_bytes=100,codec=onebit)", 4),
        ("zero2(microbatches=2,bucket_bytes=100,codec=q8)", 3),
    ],
)  # fmt: skip
def test_a_weighted_loss_equals_its_replay(plan: str, size: int) -> None:
    """Means are put through the codec, or sums, where owners have parts of them; a bound on the norm is of what came
    out."""
    assert replayed(padded(clip_norm=0.1), plan, size) <= TOLERANCE


@pytest.mark.parametrize("plan", ["ddp(codec=fp16)", "ddp(codec=fp16(where=hop))", "ps_sync(codec=fp16)"])
@pytest.mark.parametrize("largest", [1e5, 4e4])
def test_what_half_precision_has_no_number_for_is_told(plan: str, largest: float) -> None:
    """QU-01, overflow: a worker's gradients of 1e5, or three of 4e4 whose sum is one in half precision, stop the run
    before any rank steps; a server adds in the bucket's precision."""
    data = Numbers()
    data.x[:], data.y[:] = 1.0, 0
    task = replace(
        perceptron(), name=f"large-{largest:g}", data=data, model=lambda: torch.nn.Linear(6, 3, bias=False),
        loss=lambda model, batch: 3 * largest * model(batch[0])[:, 0].mean(),
    )  # fmt: skip
    graph, machines = capture(task), cluster_of(3)
    trained = partial(train_in_process, Workload(task, graph), cluster=machines, steps=1)
    if "ps_sync" in plan and largest < 65504:
        assert trained(plan=call(plan, graph, machines))
        return
    with pytest.raises(RunError, match=r"codec fp16 makes of weight and others is not finite in step 0 .*65504"):
        trained(plan=call(plan, graph, machines))
    assert trained(plan=call("ddp(codec=bf16)", graph, machines))


def test_the_replay_can_fail() -> None:
    """A plan that forgets its residual is found out."""
    machines, task = cluster_of(3), perceptron()
    graph = capture(task, precision="fp64")
    plan = call("ddp(codec=onebit)", graph, machines)
    codec = replace(plan.sync[0].wire.codecs[0], error_feedback=False)
    without = replace(plan, sync=(replace(plan.sync[0], wire=replace(plan.sync[0].wire, codecs=(codec,))),))
    ends = []
    for one in (plan, without):
        states, _ = train_in_process(Workload(task, graph, precision="fp64"), one, machines, 3)
        ends.append(states[0].leaves)
    assert any(float((ends[0][name] - ends[1][name]).abs().max()) > 1e-6 for name in ends[0])


@pytest.mark.parametrize("plan", ["ddp(codec=terngrad,bucket_bytes=300)", "ddp(codec=fixed(where=hop))"])
def test_no_two_messages_are_rounded_alike(plan: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """QU-02, QU-06, QU-07, QU-11: each worker and step draws anew, so that the mean over them errs less than one."""
    drawn: list[int] = []

    def noted(seed: int, step: int, rank: int, place: str) -> int:
        key = coding_key(seed, step, rank, place)
        drawn.extend([key] * (rank >= 0))
        return key

    monkeypatch.setattr(coding, "coding_key", noted)
    task, machines = perceptron(), cluster_of(3)
    graph = capture(task)
    train_in_process(Workload(task, graph), call(plan, graph, machines), machines, 4)
    assert len(drawn) >= 3 * 4
    assert len(set(drawn)) == len(drawn)


def test_what_is_held_back_differs_by_worker() -> None:
    machines, task = cluster_of(3), perceptron()
    graph = capture(task)
    plan = call("ddp(codec=topk(ratio=0.1))", graph, machines)
    states, _ = train_in_process(Workload(task, graph), plan, machines, 3)
    held = [states[rank].kept[Space.RESIDUAL, "b0"] for rank in range(3)]
    assert all(float(one.abs().max()) > 0 for one in held)
    assert not held[0].equal(held[1])


@pytest.mark.parametrize(
    ("codec", "sent"),
    [
        # 36 numbers in one bucket among 4 ranks: a ring's 2 * 3/4, or the codings of all others' to be passed on.
        ("fp16", 2 * 3 * 9 * 2),
        ("truncate", 2 * 3 * 9 * 2),
        ("q8", 2 * 3 * (9 + 4)),
        ("q8(where=end)", 3 * (36 + 4)),
        ("onebit", 3 * (5 + 8)),
        ("terngrad", 3 * (9 + 4)),
        ("topk(ratio=0.25)", 3 * 9 * 8),
    ],
)
def test_bytes_on_the_wire(codec: str, sent: int) -> None:
    """QU-15: 2(p-1)/p n / r and 4 a message; gathered codings (p-1) times their size. Exactly."""
    graph, machines = two_layers(), whole_cores(4, 1e6)
    program = program_by(f"ddp(codec={codec})", graph, machines)
    batches = sorted({segment.batch for segment in program.segments})
    assert simulate(program, priced(graph, machines, batches)).wire_sent == (sent,) * 4


@pytest.mark.parametrize(
    ("codec", "sent"),
    [
        # Gradients of 36 numbers in 4 parts, three of them sent; the weights that are gathered, as they are.
        ("none", 3 * 9 * 4 + 3 * 9 * 4),
        ("fp16", 3 * 9 * 2 + 3 * 9 * 4),
        ("q8", 3 * (9 + 4) + 3 * 9 * 4),
        ("q8(where=end)", 3 * (9 + 4) + 3 * 9 * 4),
        ("onebit", 3 * (2 + 8) + 3 * 9 * 4),
        ("topk(ratio=0.25)", 3 * 3 * 8 + 3 * 9 * 4),
    ],
)
def test_bytes_to_owners(codec: str, sent: int) -> None:
    """(p-1)/p of each worker's coding, whichever way it goes, and no more than that of the weights."""
    graph, machines = two_layers(), whole_cores(4, 1e6)
    program = program_by(f"zero1(codec={codec})", graph, machines)
    batches = sorted({segment.batch for segment in program.segments})
    assert simulate(program, priced(graph, machines, batches)).wire_sent == (sent,) * 4
