"""Training with divided state ends where one process ends: any parts, tied weights, bounds, weights, whole rules."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn

from partita.graph.graph import Graph
from partita.oracles.check import TOLERANCE, checked
from partita.plan.mesh import Mesh
from partita.plan.plan import Plan
from partita.program.instruction import Collective, Update
from partita.program.layout import NORM
from partita.program.space import Kind
from partita.recipes.catalogue import call
from partita.runs.assembly import train_in_process
from partita.runtime.workload import Workload
from partita.task import Task
from tests.captures import capture
from tests.programs import program_by
from tests.runtime.padded import padded
from tests.small import cluster_of, perceptron
from tests.tracing.models import TASKS

PLANS = (
    "zero1", "zero1(bucket_bytes=100,microbatches=2)", "zero2(bucket_bytes=100)",
    "zero2(bucket_bytes=0,microbatches=3)", "zero3", "zero3(bucket_bytes=100,microbatches=2)",
    "zero3(bucket_bytes=0,ahead=2,keep=1)",
    "zero3(bucket_bytes=0,keep=99)", "ddp(shard=gradients,bucket_bytes=200)",
)  # fmt: skip
STAGES = ("zero1", "zero2", "zero3")


@cache
def model(name: str) -> Task:
    return replace(TASKS[name](), batch_size=8)


def difference(task: Task, text: str, size: int, steps: int = 3) -> float:
    machines = cluster_of(size)
    found = checked(task, lambda graph: call(text, graph, machines), machines, steps=steps)
    return float(found["max_difference"])


def quick_if(quick: bool, *values: Any) -> Any:
    """Values of parameters, for `make check` unless they are quick."""
    return pytest.param(*values, marks=() if quick else pytest.mark.slow)


EVEN = ("zero1", "zero3(bucket_bytes=100,microbatches=2)")  # quickly on two and four ranks too


@pytest.mark.parametrize(
    ("plan", "size"), [quick_if(size == 3 or plan in EVEN, plan, size) for size in (2, 3, 4) for plan in PLANS]
)
def test_divided_state_trains_as_one_process(plan: str, size: int) -> None:
    """ME-01, ME-02, ME-03; most of the buckets' sizes are not divisible by 3 or 4."""
    assert difference(perceptron(), plan, size, 4) <= TOLERANCE


@pytest.mark.parametrize("plan", ["zero1(bucket_bytes=100)", "zero3(bucket_bytes=100)"])
def test_twenty_steps_of_adam(plan: str) -> None:
    """ME-01, ME-03: moments and their bias corrections."""
    assert difference(TROUBLES["adam"], plan, 4, 20) <= TOLERANCE


class Lamb(torch.optim.Optimizer):
    """A rule that needs whole tensors: a step is as long as its weight (You et al. 2020, without moments)."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for p in self.param_groups[0]["params"]:
            state = self.state[p]
            state["mean"] = state.get("mean", torch.zeros_like(p)).lerp(p.grad, 0.5)
            p.sub_(state["mean"] * 0.1 * p.norm() / (state["mean"].norm() + 1e-6))


class Preconditioned(torch.optim.Optimizer):
    """Shampoo's kind: matrices are preconditioned, after three steps, by the products of their gradients so far
    (Gupta, Koren & Singer 2018, of which this is one side)."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for p in self.param_groups[0]["params"]:
            state, rows = self.state[p], p.grad.reshape(len(p), -1)
            state["step"] = state.get("step", 0) + 1
            state["rows"] = state.get("rows", 1e-3 * torch.eye(len(p), dtype=p.dtype)) + rows @ rows.T
            if state["step"] > 3:
                values, vectors = torch.linalg.eigh(state["rows"])
                rows = vectors @ ((vectors.T @ rows) / values.sqrt()[:, None])
            p.sub_(0.1 * rows.view(p.shape))


def biases_bounded(parameters: Any) -> torch.optim.Optimizer:
    """The biases' gradients are bounded together: a rule that couples some tensors."""
    given = list(parameters)
    made = torch.optim.SGD(given, lr=0.1)
    some = [p for p in given if p.dim() == 1]
    made.register_step_pre_hook(lambda *_: (torch.nn.utils.clip_grad_norm_(some, 0.05), None)[1])
    return made


def matrices_decay(parameters: Any) -> torch.optim.Optimizer:
    """Weights decay, biases do not: a rule that looks at dimensions."""
    given = list(parameters)
    groups = [
        {"params": [p for p in given if (p.dim() > 1) is wide], "weight_decay": wide * 0.1} for wide in (True, False)
    ]
    return torch.optim.AdamW([group for group in groups if group["params"]], lr=0.05)


def matrices() -> nn.Module:
    """No vectors, which Muon does not take."""
    return nn.Sequential(nn.Linear(6, 16, bias=False), nn.ReLU(), nn.Linear(16, 3, bias=False))


TROUBLES = {
    "adam": replace(perceptron(), name="adam", optimizer=lambda ps: torch.optim.Adam(ps, lr=0.01)),
    "decays": replace(perceptron(), name="decays", optimizer=matrices_decay),
    "bounded": replace(perceptron(), name="bounded", clip_norm=0.1),
    "lamb": replace(perceptron(), name="lamb", optimizer=Lamb),
    "muon": replace(perceptron(), name="muon", model=matrices, optimizer=lambda ps: torch.optim.Muon(ps, lr=0.02)),
    "preconditioned": replace(perceptron(), name="preconditioned", optimizer=Preconditioned),
    "biases": replace(perceptron(), name="biases", optimizer=biases_bounded),
    "padded": padded(),
    "padded-bounded": replace(padded(), name="padded-bounded", clip_norm=0.1),
}


@pytest.mark.parametrize(
    ("plan", "trouble"),
    [
        quick_if("zero3" in plan or trouble in ("lamb", "preconditioned", "biases", "padded-bounded"), plan, trouble)
        for plan in ("zero1(bucket_bytes=100)", "zero2(bucket_bytes=100,microbatches=2)", "zero3(bucket_bytes=0)")
        for trouble in TROUBLES
    ],
)
def test_troubles(trouble: str, plan: str) -> None:
    """ME-02: a bound on the norm of all. EX-06: rules that are not element-wise, and ones that look at dimensions."""
    assert difference(TROUBLES[trouble], plan, 3, 4) <= TOLERANCE


@pytest.mark.parametrize("plan", ["zero1(bucket_bytes=9000)", "zero2(bucket_bytes=5000)", "zero3(bucket_bytes=5000)"])
@pytest.mark.parametrize("name", ["gpt2", "convnet"])
def test_models(name: str, plan: str) -> None:
    """Tied weights are read first and last; batch statistics stay with their rank."""
    assert difference(model(name), plan, 3) <= TOLERANCE


@pytest.mark.parametrize(
    ("recipe", "shard"),
    [
        quick_if(shard == "parameters" or (recipe, shard) in (("gpipe", "optimizer"), ("zero_bubble", "gradients")),
                 recipe, shard)
        for shard in ("optimizer", "gradients", "parameters")
        for recipe in ("gpipe", "one_f_one_b", "interleaved", "zero_bubble")
    ],
)  # fmt: skip
def test_stages_divide_their_state(recipe: str, shard: str) -> None:
    text = f"{recipe}(stages=2,data=2,microbatches=2,bucket_bytes=3000,shard={shard})"
    assert difference(model("gpt2"), text, 4) <= TOLERANCE


@pytest.mark.parametrize("shard", [pytest.param("gradients", marks=pytest.mark.slow), "optimizer", "parameters"])
@pytest.mark.parametrize(("trouble", "stages"), [("padded", 2), ("padded-bounded", 3)])
def test_all_stages_hear_of_the_weight(trouble: str, stages: int, shard: str) -> None:
    """The first stage has its part in its first microbatch, the one with the loss in its last; of three stages that one
    has no weights."""
    text = f"one_f_one_b(stages={stages},data=2,microbatches=3,bucket_bytes=100,shard={shard})"
    assert difference(TROUBLES[trouble], text, 2 * stages) <= TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("plan", [*STAGES, "zero3(bucket_bytes=4000,microbatches=2)"])
@pytest.mark.parametrize("name", TASKS)
def test_every_model(name: str, plan: str) -> None:
    assert difference(TASKS[name](), plan, 2) <= TOLERANCE


@pytest.mark.parametrize("plan", ["zero1(bucket_bytes=100)", "zero2(microbatches=2)", "zero3(bucket_bytes=100)"])
def test_bits_do_not_depend_on_the_order(plan: str) -> None:
    task, machines = perceptron(), cluster_of(3)
    graph = capture(task)
    made = call(plan, graph, machines)
    first = train_in_process(Workload(task, graph), made, machines, 3)[0]
    for order in range(1, 6):
        again = train_in_process(Workload(task, graph), made, machines, 3, order=order, slow={order % 3: 0.02})[0]
        for rank, state in again.items():
            assert all(torch.equal(leaf, first[rank].leaves[name]) for name, leaf in state.leaves.items())


@pytest.mark.slow
@pytest.mark.parametrize("shard", ["optimizer", "gradients", "parameters"])
@pytest.mark.parametrize("recipe", ["gpipe", "one_f_one_b", "interleaved", "zero_bubble"])
def test_no_order_of_weighted_stages_gets_stuck(recipe: str, shard: str) -> None:
    """All stages meet twice a round, for the weight and the norm, while each gathers and scatters for itself."""
    task, machines = padded(clip_norm=0.1), cluster_of(4)
    graph = capture(task)
    made = call(f"{recipe}(stages=2,data=2,microbatches=3,bucket_bytes=100,shard={shard})", graph, machines)
    first = train_in_process(Workload(task, graph), made, machines, 3)[0]
    for order in range(1, 30):
        again = train_in_process(
            Workload(task, graph), made, machines, 3, order=order, slow={order % 4: (1 + order % 7) / 50}
        )[0]
        for rank, state in again.items():
            held = [p.name for p in graph.parameters if p.name in state.leaves]
            assert all(torch.equal(state.leaves[name], first[rank].leaves[name]) for name in held)


@pytest.mark.parametrize("bound", [0.0, 0.05])
def test_the_last_stage_gathers_its_own_weights_before_it_waits_for_the_first(bound: float) -> None:
    """Of a tied weight the first stage's gradient comes last; a bound on the norm waits for it in any case."""
    task = replace(TASKS["gpt2"](), name="gpt2-tied", clip_norm=bound or None)
    machines, text = cluster_of(4), "one_f_one_b(stages=2,data=2,microbatches=2,shard=optimizer,bucket_bytes=3000)"
    program = program_by(text, capture(task), machines)
    for rank, first in ((0, True), (3, False)):
        role = next(role for role in program.roles if rank in role.ranks)
        wire = [i.act for i in role.on("wire") if isinstance(i.act, Collective) and i.act.bucket != NORM]
        tied = next(n for n, act in enumerate(wire) if len(act.groups[0]) == 4 and act.kind is Kind.REDUCE_SCATTER)
        own = [n for n, act in enumerate(wire) if len(act.groups[0]) == 2 and act.kind is Kind.ALL_GATHER]
        assert (max(own) < tied) is not (first or bool(bound))
        updates = [i.act.bucket for i in role.on("update") if isinstance(i.act, Update)]
        assert updates[-1] == wire[tied].bucket
    assert checked(task, lambda graph: call(text, graph, machines), machines)["max_difference"] <= TOLERANCE


@pytest.mark.parametrize("bound", [None, 0.1])
@pytest.mark.parametrize("ranks", [((0,), (1, 2)), ((0, 1, 2), (3,))])
def test_a_stage_of_one_replica_beside_divided_ones_waits_for_its_own_update(
    ranks: tuple[tuple[int, ...], ...], bound: float | None
) -> None:
    """Nobody gathers its weights, so its next pass has no other reason to wait."""
    task, machines = replace(perceptron(), clip_norm=bound), cluster_of(4)

    def planned(graph: Graph) -> Plan:
        plan = call("gpipe(stages=2,microbatches=4,shard=optimizer)", graph, machines)
        stages = tuple(replace(stage, ranks=those) for stage, those in zip(plan.stages, ranks, strict=True))
        return replace(plan, mesh=Mesh((("pipe", 2),)), stages=stages)

    assert checked(task, planned, machines, steps=4)["equal"]
