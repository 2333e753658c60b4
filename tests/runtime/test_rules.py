"""Rules and rates of the plan's own against their formulas in plain PyTorch, which share nothing with the runtime."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from partita.checkpoints.checkpoint import SavePolicy
from partita.checkpoints.manifest import differences, identity_of
from partita.checkpoints.restore import open_checkpoint
from partita.errors import PlanError, TaskError
from partita.graph.graph import Optimizer
from partita.lowering.lower import last_program, lower
from partita.oracles.check import TOLERANCE, checked, difference, gathered
from partita.plan.memory import Memory, Shard
from partita.plan.plan import Rule, Update
from partita.plan.rule import rate_factor
from partita.recipes.catalogue import call
from partita.runs.assembly import initial, train_in_process
from partita.runtime.rules import optimizer_of, step_at_rate
from partita.runtime.state import State
from partita.runtime.workload import Workload
from partita.task import Task
from tests.captures import capture
from tests.small import cluster_of, perceptron

STEPS, SEED = 4, 3
Tensors = list[torch.Tensor]
PLANS = (
    "single", "ddp(bucket_bytes=200)", "ps_sync(servers=2,bucket_bytes=200)", "pipe_sgd", "local_sgd(period=2)",
    "one_f_one_b(stages=2,data=2,microbatches=2)",
)  # fmt: skip


def task_of(rule: str) -> Task:
    decayed = {
        "lars": partial(torch.optim.SGD, lr=0.5, momentum=0.9, weight_decay=0.01),
        "lamb": partial(torch.optim.AdamW, lr=0.05, betas=(0.8, 0.9), eps=1e-5, weight_decay=0.1),
    }
    return replace(perceptron(), optimizer=decayed[rule])


def lars(w: torch.Tensor, g: torch.Tensor, kept: dict[str, torch.Tensor], rate: float) -> torch.Tensor:
    """You, Gitman & Ginsburg 2017, one line a formula."""
    local = 0.001 * w.norm() / (g.norm() + 0.01 * w.norm()) if w.norm() and g.norm() else 1.0
    kept["v"] = 0.9 * kept.get("v", torch.zeros_like(w)) + rate * local * (g + 0.01 * w)
    return w - kept["v"]


def lamb(w: torch.Tensor, g: torch.Tensor, kept: dict[str, torch.Tensor], rate: float) -> torch.Tensor:
    """You et al. 2019, one line a formula."""
    kept["t"] = kept.get("t", torch.zeros(())) + 1
    t = int(kept["t"])
    kept["m"] = 0.8 * kept.get("m", torch.zeros_like(w)) + 0.2 * g
    kept["v"] = 0.9 * kept.get("v", torch.zeros_like(w)) + 0.1 * g * g
    u = kept["m"] / (1 - 0.8**t) / ((kept["v"] / (1 - 0.9**t)).sqrt() + 1e-5) + 0.1 * w
    return w - rate * (w.norm() / u.norm() if w.norm() and u.norm() else 1.0) * u


FORMULAS: dict[str, tuple[Callable[..., torch.Tensor], float]] = {"lars": (lars, 0.5), "lamb": (lamb, 0.05)}


def plainly(task: Task, rule: str, rates: list[float]) -> dict[str, torch.Tensor]:
    formula, rate = FORMULAS[rule]
    torch.manual_seed(SEED)
    model = task.model().double()
    order = torch.randperm(len(task.data), generator=torch.Generator().manual_seed(SEED))
    kept: dict[str, dict[str, torch.Tensor]] = {name: {} for name, _ in model.named_parameters()}
    for step, factor in enumerate(rates):
        picked = order[step * task.batch_size : (step + 1) * task.batch_size]
        loss = nn.functional.cross_entropy(model(task.data.x[picked].double()), task.data.y[picked])
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for (name, w), g in zip(model.named_parameters(), gradients, strict=True):
                w.copy_(formula(w, g, kept[name], rate * factor))
    return dict(model.named_parameters())


@pytest.mark.parametrize("rule", FORMULAS)
@pytest.mark.parametrize(
    "plan", ["ddp(bucket_bytes=200)", "ps_sync(servers=2,bucket_bytes=200)", "zero_bubble(stages=2)"]
)
def test_a_rule_is_its_papers(rule: str, plan: str) -> None:
    """LB-03, LB-04, LB-01, EX-06: with a warm-up, in buckets smaller than the tensors, as its formula in plain PyTorch;
    so a norm is that of a whole tensor, whoever holds it."""
    task, machines = task_of(rule), cluster_of(3)
    graph = capture(task, precision="fp64")
    text = f"{plan.removesuffix(')')},rule={rule},rate_scale=3,rate_warmup=2)"
    made = call(text, graph, machines)
    states, _ = train_in_process(Workload(task, graph, seed=SEED, precision="fp64"), made, machines, STEPS)
    program = last_program(graph, made, machines)
    theirs = plainly(task, rule, [1.0, 2.0, 3.0, 3.0])
    assert difference(gathered(program, states), theirs) <= TOLERANCE
    assert difference(gathered(program, states), plainly(task, rule, [1.0] * STEPS)) > 1e-6


@pytest.mark.parametrize("rule", FORMULAS)
@pytest.mark.parametrize("plan", PLANS)
def test_any_method_keeps_a_rule_exact(rule: str, plan: str) -> None:
    """LB-03, LB-04: sharded by servers or stages as unsharded (EX-06)."""
    machines = cluster_of(4)
    text = f"{plan.removesuffix(')')}{',' if '(' in plan else '('}rule={rule},rate_warmup=2)"
    found = checked(task_of(rule), lambda graph: call(text, graph, machines), machines)
    assert found["max_difference"] <= TOLERANCE


def stepped(
    rule: Rule, rate: float, weights: list[torch.Tensor], gradients: list[torch.Tensor], **group: float
) -> None:
    """One step of a rule."""
    task = replace(perceptron(), optimizer=lambda p: torch.optim.SGD(p, lr=rate, momentum=0.0, **group))
    for w, g in zip(weights, gradients, strict=True):
        w.grad = g
    update = Update(rule)
    step_at_rate(optimizer_of(task, update, weights), update)


def drawn(count: int) -> Tensors:
    draw = torch.Generator().manual_seed(count)
    return [torch.randn(5, 7, generator=draw, dtype=torch.float64) for _ in range(count)]


@pytest.mark.parametrize("scale", [1e-6, 3.0, 1e9])
def test_the_step_of_lars_does_not_follow_the_gradients_scale(scale: float) -> None:
    """LB-03: without decay, |dw| / |w| = rate x trust in every layer, whatever the gradient; 1 where it is zero."""
    weights, before = drawn(3), drawn(3)
    stepped(Rule.LARS, 0.5, weights, [scale * g for g in drawn(4)[1:]])
    for w, old in zip(weights, before, strict=True):
        assert ((w - old).norm() / old.norm()).item() == pytest.approx(0.5 * 0.001, rel=1e-9)
    still = drawn(1)
    stepped(Rule.LARS, 0.5, still, [torch.zeros_like(still[0])])
    assert torch.equal(still[0], drawn(1)[0])
    fresh = [torch.zeros(3, dtype=torch.float64)]
    stepped(Rule.LARS, 0.5, fresh, [torch.ones(3, dtype=torch.float64)])
    assert torch.equal(fresh[0], torch.full((3,), -0.5, dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("rule", FORMULAS)
def test_norms_of_short_numbers_are_longer(rule: str, dtype: torch.dtype) -> None:
    """LB-07: 10,000 numbers of about 1,000 have a norm that fp16 has no number for, and move as they do in fp32."""
    draw = torch.Generator().manual_seed(0)
    short, gradient = (torch.randn(100, 100, generator=draw) * 1000.0).to(dtype), torch.ones(100, 100, dtype=dtype)
    own, full = short.clone(), short.float()
    rate = 64.0 if rule == "lars" else 0.0625
    stepped(Rule(rule), rate, [own], [gradient])
    stepped(Rule(rule), rate, [full], [gradient.float()])
    assert (own.float() - full).norm() <= torch.finfo(dtype).eps * full.norm()


@pytest.mark.parametrize("trust", [0.001, 0.02])
def test_the_trust_is_the_plan_s(trust: float) -> None:
    """LB-03: without decay and momentum, |dw| / |w| = rate x trust after one step of a run."""
    task, machines = replace(perceptron(), optimizer=partial(torch.optim.SGD, lr=0.5)), cluster_of(2)
    graph = capture(task, precision="fp64")
    plan = call(f"ddp(rule=lars,trust={trust})", graph, machines)
    states, _ = train_in_process(Workload(task, graph, seed=SEED, precision="fp64"), plan, machines, 1)
    for name, old in initial(task, SEED, "fp64")[1].items():
        assert ((states[0].leaves[name] - old).norm() / old.norm()).item() == pytest.approx(0.5 * trust, rel=1e-9)


@pytest.mark.parametrize(("momentum", "first"), [(0.7, 0.7), (0.0, 0.9)])
def test_the_first_moment_of_lamb_fades_as_the_task_s_momentum(momentum: float, first: float) -> None:
    """LB-04: of a task with SGD; where it has no momentum, as Adam's, and the second moment always so."""
    task = replace(perceptron(), optimizer=partial(torch.optim.SGD, lr=0.1, momentum=momentum))
    (w,), (one, two) = drawn(1), drawn(2)
    made = optimizer_of(task, Update(Rule.LAMB), [w])
    for w.grad in (one, two):
        made.step()
    assert torch.allclose(made.state[w]["exp_avg"], (1 - first) * (first * one + two), rtol=1e-12, atol=1e-15)
    squares = 0.001 * (0.999 * one**2 + two**2)
    assert torch.allclose(made.state[w]["exp_avg_sq"], squares, rtol=1e-12, atol=1e-15)


def test_the_step_of_lamb_is_as_long_as_the_weights_are() -> None:
    """LB-04: |dw| = rate |w| in every layer; 1 where a norm is zero."""
    weights = drawn(3)
    stepped(Rule.LAMB, 0.25, weights, drawn(4)[1:], weight_decay=0.1)
    for w, old in zip(weights, drawn(3), strict=True):
        assert ((w - old).norm() / old.norm()).item() == pytest.approx(0.25, rel=1e-9)
    fresh = [torch.zeros(3, dtype=torch.float64)]
    stepped(Rule.LAMB, 0.25, fresh, [torch.ones(3, dtype=torch.float64)])
    assert fresh[0].tolist() == pytest.approx([-0.25] * 3, rel=1e-5)


def test_lamb_is_adamw_where_weights_are_as_long_as_steps() -> None:
    """LB-04: with |w| = |u| a step is AdamW's, to 1e-12; with weights of twice that length it is not."""
    gradients = drawn(2)[1:]
    task = replace(perceptron(), optimizer=partial(torch.optim.AdamW, lr=0.1, weight_decay=0.0))

    def moved(weights: torch.Tensor, rule: Rule) -> torch.Tensor:
        w, update = weights.clone(), Update(rule)
        w.grad = gradients[0]
        step_at_rate(optimizer_of(task, update, [w]), update)
        return w - weights

    w = drawn(1)[0]
    w *= moved(w, Rule.TASK).norm() / 0.1 / w.norm()
    assert torch.allclose(moved(w, Rule.LAMB), moved(w, Rule.TASK), rtol=1e-12, atol=0)
    assert not torch.allclose(moved(2 * w, Rule.LAMB), moved(2 * w, Rule.TASK), rtol=1e-2, atol=0)


def test_rates() -> None:
    """LB-01: from the task's rate to its multiple in equal steps; from nothing where there is no multiple."""
    assert [rate_factor(Update(scale=16, warmup=5), t) for t in range(7)] == [1, 4, 7, 10, 13, 16, 16]
    assert [rate_factor(Update(warmup=4), t) for t in range(6)] == [0.25, 0.5, 0.75, 1, 1, 1]
    assert [rate_factor(Update(scale=0.5), t) for t in range(2)] == [0.5, 0.5]


def test_a_large_step_nearly_is_many_small_ones() -> None:
    """LB-01: k steps of rate r on parts of a minibatch against one of k r on the whole differ by O(r^2)."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(64, 6, generator=draw, dtype=torch.float64)
    y = torch.randn(64, generator=draw, dtype=torch.float64)

    def trained(rate: float, parts: int, factor: float) -> torch.Tensor:
        w, update = torch.zeros(6, dtype=torch.float64, requires_grad=True), Update(scale=factor)
        optimizer = torch.optim.SGD([w], lr=rate)
        for part in torch.arange(64).chunk(parts):
            optimizer.zero_grad()
            ((x[part] @ w - y[part]) ** 2).mean().backward()
            step_at_rate(optimizer, update)
        return w.detach()

    rates = [1e-2, 1e-3, 1e-4]
    gaps = [(trained(rate, 8, 1.0) - trained(rate, 1, 8.0)).norm().log10().item() for rate in rates]
    assert all(1.8 <= before - after <= 2.2 for before, after in pairwise(gaps))


def test_norms_do_not_meet_shards() -> None:
    """EX-06: where state is divided, each bucket is one owner's, and no norm is that of a part."""
    graph, machines = capture(perceptron()), cluster_of(2)
    plan = replace(call("ddp(rule=lamb)", graph, machines), memory=Memory(shard=Shard.OPTIMIZER))
    for bucket in last_program(graph, plan, machines).trained:
        assert bucket.shares
        assert set(bucket.shares.edges) == {0, bucket.elements}
    assert graph.optimizer == Optimizer("SGD", graph.optimizer.state, momentum=0.9)
    for wrong, words in (
        ("rate_scale=0.0", "scale 0.0"),
        ("trust=0.0", "trust 0.0"),
        ("trust=0.02", "use it with rule=lars"),
        ("rule=adam", "one of task, lars"),
    ):
        with pytest.raises(PlanError, match=words):
            lower(graph, call(f"ddp({wrong})", graph, machines), machines)


@pytest.mark.parametrize("rule", FORMULAS)
def test_a_checkpoint_knows_how_far_the_rate_has_risen(rule: str, tmp_path: Path) -> None:
    """Also under another plan; a run under another rule does not go on from it."""
    task, machines = task_of(rule), cluster_of(3)
    graph = capture(task)

    def run(text: str, **more: Any) -> dict[int, State]:
        plan = call(f"{text.removesuffix(')')}{',' if '(' in text else '('}rule={rule},rate_warmup=6)", graph, machines)
        return train_in_process(Workload(task, graph), plan, machines, STEPS, **more)[0]

    unbroken = run("ddp", keep=SavePolicy(str(tmp_path), 2, 9))[0].leaves
    saved = open_checkpoint(tmp_path / "checkpoints" / "step-2")
    for text in ("ddp", "ps_sync(servers=2,own=false)"):
        again = run(text, saved=saved)[0].leaves
        assert all(torch.allclose(again[p.name], unbroken[p.name], rtol=1e-6, atol=1e-8) for p in graph.parameters)
    assert all(torch.equal(run("ddp", saved=saved)[0].leaves[p.name], unbroken[p.name]) for p in graph.parameters)
    told = differences(identity_of(graph, 0, Update()), saved.manifest.identity)
    assert told == [f"was written with optimizer {rule.upper()}, and this run has {graph.optimizer.name}"]


CYCLES = {
    "one": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.5, total_steps=9, base_momentum=0.5, max_momentum=0.8),
    "cyclic": lambda o: torch.optim.lr_scheduler.CyclicLR(o, 0.1, 0.5, 2, base_momentum=0.5, max_momentum=0.8),
}


@pytest.mark.parametrize("cycle", CYCLES)
@pytest.mark.parametrize("rule", FORMULAS)
def test_a_schedule_moves_the_momentum_of_a_rule(rule: str, cycle: str) -> None:
    task, machines = replace(task_of(rule), schedule=CYCLES[cycle]), cluster_of(2)
    assert checked(task, lambda graph: call(f"ddp(rule={rule})", graph, machines), machines)["equal"]
    made = optimizer_of(task, Update(Rule(rule)), task.model().parameters())
    CYCLES[cycle](made)
    (group,) = made.param_groups
    assert (group["momentum"] if rule == "lars" else group["betas"][0]) == 0.8


def test_a_schedule_that_a_rule_cannot_have_is_named() -> None:
    def schedule(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
        if "trust" in optimizer.defaults:
            raise ValueError("no trust")
        return torch.optim.lr_scheduler.StepLR(optimizer, 1)

    task, machines = replace(task_of("lars"), schedule=schedule), cluster_of(2)
    sentence = r"schedule of .* could not be made for the optimizer Lars \(ValueError: no trust\); give"
    with pytest.raises(TaskError, match=sentence):
        checked(task, lambda graph: call("ddp(rule=lars)", graph, machines), machines)


@pytest.mark.parametrize("rule", FORMULAS)
def test_a_rule_goes_uphill_where_the_task_does(rule: str) -> None:
    """A step up is the step down of the gradient's opposite, weight decay included."""
    up, down = drawn(1), drawn(1)
    stepped(Rule(rule), 0.5, up, drawn(2)[1:], weight_decay=0.1, maximize=True)
    stepped(Rule(rule), 0.5, down, [-drawn(2)[1]], weight_decay=0.1)
    assert torch.equal(up[0], down[0])
    assert not torch.equal(up[0], drawn(1)[0])


def test_a_rule_takes_settings_of_any_optimizer() -> None:
    """Adafactor has two numbers for eps, of which none is LAMB's."""
    task = replace(perceptron(), optimizer=lambda parameters: torch.optim.Adafactor(parameters))
    weight = torch.ones(2, 3)
    weight.grad = torch.ones(2, 3)
    optimizer_of(task, Update(rule=Rule.LAMB), [weight]).step()
    assert (weight < 1).all()


@pytest.mark.parametrize("plan", PLANS)
def test_an_optimizer_may_ask_which_weights_are_trained(plan: str) -> None:
    """The usual `filter(lambda p: p.requires_grad, parameters)` keeps all weights that are; and it is elementwise."""

    def filtered(parameters: list[torch.Tensor]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(filter(lambda p: p.requires_grad, parameters), lr=0.01)

    task, machines = replace(perceptron(), optimizer=filtered), cluster_of(4)
    assert capture(task).optimizer.elementwise
    assert checked(task, lambda graph: call(plan, graph, machines), machines)["equal"]


def test_a_schedule_that_ends_too_soon_is_named_with_its_step() -> None:
    def schedule(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.5, total_steps=3)

    task, machines = replace(perceptron(), schedule=schedule), cluster_of(2)
    graph = capture(task)
    with pytest.raises(TaskError, match=r"schedule at step 3 failed \(ValueError: Tried to step 4 times"):
        train_in_process(Workload(task, graph), call("ddp", graph, machines), machines, 6)
