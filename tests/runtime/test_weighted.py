"""A loss that is a sum with a weight: exact whatever the parts of a minibatch weigh."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import ceil, inf

import pytest
import torch
from torch.utils.data import default_collate

from partita.checkpoints.losses import Row, taken_rows
from partita.errors import LoweringError, RunError
from partita.lowering.lower import lower
from partita.oracles.check import TOLERANCE, checked
from partita.oracles.reference import fresh
from partita.program.instruction import Pack, Scale
from partita.program.layout import WEIGHT
from partita.recipes.catalogue import call
from partita.runs import assembly
from partita.runs.assembly import train_in_process
from partita.runtime.rank import Rank
from partita.runtime.workload import Workload
from partita.task import Task
from tests.captures import capture
from tests.programs import program_by
from tests.runtime.padded import Sentences, mean, padded
from tests.small import Numbers, cluster_of, perceptron

PLANS = ("single", "ddp", "ps_sync", "ps_sync(servers=2,own=false)", "pipe_sgd(warmup=1)", "local_sgd(period=2)")
PIPELINES = (
    "gpipe(stages=3)", "one_f_one_b(stages=2,data=2)", "interleaved(stages=2,chunks=2)", "zero_bubble(stages=3,data=2)",
)  # fmt: skip


def with_microbatches(plan: str, count: int) -> str:
    name, _, rest = plan.partition("(")
    return f"{name}(microbatches={count}{',' + rest if rest else ')'}"


@pytest.mark.parametrize("microbatches", [1, 2])
@pytest.mark.parametrize("plan", PLANS)
def test_a_plan_equals_its_serial_training(plan: str, microbatches: int) -> None:
    machines = cluster_of(3)
    text = with_microbatches(plan, microbatches)
    found = checked(padded(), lambda graph: call(text, graph, machines), machines)
    assert found["max_difference"] <= TOLERANCE


@pytest.mark.parametrize("plan", PIPELINES)
def test_all_stages_hear_of_the_weight(plan: str) -> None:
    """With microbatches of unequal weight, some of none at all, wherever the loss is; as far as the loss itself."""
    machines = cluster_of(6)
    found = checked(padded(), lambda graph: call(with_microbatches(plan, 2), graph, machines), machines)
    assert found["max_difference"] <= TOLERANCE
    test_the_loss_is_the_sum_over_the_weight(plan)


@pytest.mark.parametrize("plan", ["local_sgd(period=2)", "ps_async", "ssp", "gossip"])
def test_samples_that_do_not_count_have_no_gradient(plan: str) -> None:
    """Of twelve workers with a sample each, some have one without a token."""
    machines = cluster_of(12)
    found = checked(padded(), lambda graph: call(plan, graph, machines), machines, steps=4)
    assert (found["equal"], found["because"]) == (True, "")


@pytest.mark.parametrize("plan", ["single", "ddp", "local_sgd(period=2)", "pipe_sgd"])
def test_a_minibatch_of_which_nothing_counts_moves_nothing(plan: str) -> None:
    """The first minibatches of this data are padding alone."""
    machines = cluster_of(2)
    task = replace(padded(), data=Sentences(240), batch_size=4)
    found = checked(task, lambda graph: call(plan, graph, machines), machines, steps=4)
    assert (found["equal"], found["because"]) == (True, "")


@pytest.mark.parametrize(
    "plan",
    [
        "single(microbatches=2)", "ddp(bucket_bytes=500)", "ps_sync", "ps_sync(servers=2,bucket_bytes=500)",
        "ps_sync(servers=3,own=false,bucket_bytes=500)", "pipe_sgd", "local_sgd", *PIPELINES,
    ],
)  # fmt: skip
def test_the_bound_is_on_the_mean(plan: str) -> None:
    machines = cluster_of(6)
    found = checked(padded(clip_norm=0.1), lambda graph: call(plan, graph, machines), machines)
    assert found["max_difference"] <= TOLERANCE


def test_a_mean_of_means_is_found_out() -> None:
    """Said to be a mean over samples, a mean over unequal numbers of tokens is not what parts of it make."""
    machines = cluster_of(3)
    assert checked(padded(mean), lambda graph: call("single", graph, machines), machines)["equal"]
    assert checked(padded(mean), lambda graph: call("ddp", graph, machines), machines)["max_difference"] > 1e-4


@pytest.mark.parametrize("plan", [*PLANS, "ddp(microbatches=2)"])
def test_the_loss_is_the_sum_over_the_weight(plan: str) -> None:
    task, machines = padded(), cluster_of(6)
    graph = capture(task)
    _, losses = train_in_process(Workload(task, graph, seed=5), call(plan, graph, machines), machines, 2)
    torch.manual_seed(5)
    order = torch.randperm(len(task.data), generator=torch.Generator().manual_seed(5))[: task.batch_size]
    total, weight = task.loss(task.model(), default_collate([task.data[int(i)] for i in order]))
    assert losses[0] == pytest.approx((total / weight).item(), rel=1e-5)


@pytest.mark.parametrize("plan", ["ddp(microbatches=2)", "pipe_sgd", "local_sgd(period=2)", "gpipe(stages=3)"])
@pytest.mark.parametrize("make", [perceptron, padded])
def test_of_a_step_that_is_over_numbers_are_kept_and_no_tensors(
    monkeypatch: pytest.MonkeyPatch, make: Callable[[], Task], plan: str
) -> None:
    """A run may have a million steps."""
    kept: list[object] = []

    def taken(rank: Rank) -> list[Row]:
        kept.extend((*rank.losses.values(), *rank.weights.values()))
        rows = taken_rows(rank)
        assert not rank.losses
        assert not rank.weights
        return rows

    monkeypatch.setattr(assembly, "taken_rows", taken)
    task, machines = make(), cluster_of(3)
    graph = capture(task)
    _, losses = train_in_process(Workload(task, graph, seed=5), call(plan, graph, machines), machines, 4)
    assert sorted(losses) == [0, 1, 2, 3]
    assert {type(value) for value in kept} == {float}


def test_only_a_weighted_loss_pays_for_its_weight() -> None:
    machines = cluster_of(3)
    for task, expected in ((perceptron(), False), (padded(), True)):
        graph = capture(task)
        program = program_by("ddp", graph, machines)
        acts = [i.act for _, i in program.instructions()]
        assert (WEIGHT in program.bucket) == expected
        assert any(isinstance(act, Scale) for act in acts) == expected
        assert any(isinstance(act, Pack) and act.bucket == WEIGHT for act in acts) == expected


def test_the_weight_is_agreed_on_while_backward_goes_on() -> None:
    graph, machines = capture(padded()), cluster_of(3)
    role = program_by("ddp(bucket_bytes=500)", graph, machines).roles[0]
    names = [i.name for i in role.instructions if i.lane in ("compute", "wire")]
    assert names.index("PW") < names.index("B0")
    assert [i.name for i in role.on("wire")][:2] == ["AW", "A0"]
    assert {a.name for a in role.on_name["W0"].after} == {"A0", "AW"}


def largest_of_means(task: Task, momentum: float, bound: float) -> dict[str, torch.Tensor]:
    """Three workers, of whom each sends the tenth that is largest of its part of the mean gradient and of what it has
    not sent: bounded, with momentum, and both forgotten where it was sent (SP-02, SP-03)."""
    one = fresh(task, seed=0, precision="fp64")
    weights = list(one.model.parameters())
    sizes = [w.numel() for w in weights]
    held, velocity = (torch.zeros(3, sum(sizes), dtype=torch.float64) for _ in range(2))
    for step in range(4):
        sums = [one.sums(step, [(4 * worker, 4)], 12) for worker in range(3)]
        total = torch.zeros(sum(sizes), dtype=torch.float64)
        for worker, (found, _) in enumerate(sums):
            part = torch.cat([g.reshape(-1) for g in found]) / sum(weight for _, weight in sums)
            part *= min(1.0, bound / 3**0.5 / (float(part.norm()) + 1e-6))
            velocity[worker] = momentum * velocity[worker] + part
            held[worker] += velocity[worker]
            largest = held[worker].abs().topk(ceil(sum(sizes) / 10)).indices
            total[largest] += held[worker][largest]
            held[worker][largest] = velocity[worker][largest] = 0
        for w, g in zip(weights, total.split(sizes), strict=True):
            w.data -= 0.1 * g.view(w.shape)
    return dict(one.model.named_parameters())


@pytest.mark.parametrize(
    ("plan", "momentum", "bound"),
    [
        ("ddp(codec=topk(ratio=0.1))", 0.0, inf), ("ddp(codec=dgc(ratio=0.1,clip=0.5))", 0.0, 0.5),
        ("ddp(codec=dgc(ratio=0.1,clip=0.5))", 0.9, 0.5), ("ps_sync(own=false,codec=topk(ratio=0.1))", 0.0, inf),
    ],
)  # fmt: skip
def test_what_is_encoded_is_a_mean(plan: str, momentum: float, bound: float) -> None:
    """SP-02, SP-03: minibatches of unequal weight, of which a codec holds something back, add up as means do."""
    task, machines = replace(padded(), optimizer=partial(torch.optim.SGD, lr=0.1, momentum=momentum)), cluster_of(3)
    graph = capture(task, precision="fp64")
    states, _ = train_in_process(Workload(task, graph, precision="fp64"), call(plan, graph, machines), machines, 4)
    theirs = largest_of_means(task, momentum, bound)
    assert max(float((states[0].leaves[name] - w).detach().abs().max()) for name, w in theirs.items()) <= 1e-12


def test_a_codecs_memory_of_sums_is_refused() -> None:
    """Parts of a sum may go to their owners before the weight is known."""
    graph, machines = capture(padded()), cluster_of(3)
    for codec in ("topk", "threshold(threshold=0.1,feedback=false)"):
        with pytest.raises(LoweringError, match="where the loss is a sum with a weight, with sharded state"):
            lower(graph, call(f"zero2(codec={codec})", graph, machines), machines)
    assert lower(graph, call("zero2(codec=q8)", graph, machines), machines)


@pytest.mark.parametrize("plan", ["single", "ddp"])
def test_where_a_part_may_count_for_nothing_the_way_out_is_told(plan: str) -> None:
    """A mean over labels of which a rank ignores all is nan; one over a whole minibatch has no other form."""
    data = Numbers()
    data.y[:] = -100
    task, machines = replace(perceptron(), data=data), cluster_of(1 if plan == "single" else 2)
    graph = capture(task)
    with pytest.raises(RunError, match="is nan on rank") as caught:
        train_in_process(Workload(task, graph), call(plan, graph, machines), machines, 1)
    assert ("let Task.loss return (sum, weight)" in str(caught.value)) is (plan == "ddp")
