"""Deep gradient compression: the exact equivalences of its parts, and what it keeps (SP-03)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from partita.errors import InputError
from partita.kernels.codecs import kernel_of
from partita.lowering.lower import lower
from partita.oracles.check import TOLERANCE, checked, difference
from partita.oracles.reference import fresh
from partita.plan.wire import Codec
from partita.program.space import Space
from partita.recipes.catalogue import call
from partita.runs.assembly import train_in_process
from partita.runtime.workload import Workload
from partita.task import Task
from partita.wire.codec import coded_size
from tests.captures import capture
from tests.small import cluster_of, perceptron

STEPS = 6


def with_momentum(momentum: float, **more: Any) -> Task:
    rule = partial(torch.optim.SGD, lr=0.1, momentum=momentum, **more)
    return replace(perceptron(), optimizer=rule)


def weights(task: Task, plan: str) -> dict[str, torch.Tensor]:
    graph, machines = capture(task, precision="fp64"), cluster_of(3)
    states, _ = train_in_process(Workload(task, graph, precision="fp64"), call(plan, graph, machines), machines, STEPS)
    return states[0].leaves


REPLAYED = (("dgc(ratio=0.1),ramp=2", False), ("dgc(ratio=0.2,clip=0.3),bucket_bytes=300", True))
MORE = (("dgc(ratio=0.1)", True), ("dgc(ratio=0.2,clip=0.3)", False), ("dgc(ratio=0.1),bucket_bytes=300", False))


@pytest.mark.parametrize(
    ("codec", "nesterov"), [*REPLAYED, *(pytest.param(*one, marks=pytest.mark.slow) for one in MORE)]
)
def test_a_plan_equals_its_replay(codec: str, nesterov: bool) -> None:
    """SP-03: bounded, momentum ahead, the largest sent, both memories cleared where they were."""
    machines = cluster_of(3)
    task = with_momentum(0.9, nesterov=nesterov)
    found = checked(task, lambda graph: call(f"ddp(codec={codec})", graph, machines), machines, steps=STEPS)
    assert found["semantics"] == "lossy"
    assert found["max_difference"] <= TOLERANCE


@pytest.mark.parametrize("nesterov", [False, True])
def test_everything_sent_is_momentum_sgd(nesterov: bool) -> None:
    """SP-03: ratio 1 bypasses accumulation and masking."""
    task = with_momentum(0.9, nesterov=nesterov)
    assert difference(weights(task, "ddp(codec=dgc(ratio=1))"), weights(task, "single")) <= TOLERANCE


@pytest.mark.parametrize("more", [{}, {"nesterov": True}, {"maximize": True}])
@pytest.mark.parametrize("plan", ["ddp(codec=dgc(ratio=1))", "ddp(codec=dgc(ratio=1),bucket_bytes=300,rate_warmup=3)"])
def test_weights_decay_with_a_momentum_of_their_own(plan: str, more: dict[str, bool]) -> None:
    """SP-03, by a loop of plain PyTorch: what decays does not go through the codec."""
    task = with_momentum(0.9, weight_decay=0.1, **more)
    warmed = plan.replace("codec=dgc(ratio=1),", "") if "warmup" in plan else "single"
    assert difference(weights(task, plan), weights(task, warmed)) <= TOLERANCE


def test_groups_may_decay_unlike() -> None:
    def groups(parameters: Any) -> torch.optim.Optimizer:
        parts = [{"params": [p], "weight_decay": 0.2 * (p.dim() > 1)} for p in parameters]
        return torch.optim.SGD(parts, lr=0.1, momentum=0.9)

    task = replace(perceptron(), optimizer=groups)
    assert difference(weights(task, "ddp(codec=dgc(ratio=1))"), weights(task, "single")) <= TOLERANCE


def several(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD([{"params": [p], "momentum": 0.9 * (p.dim() > 1)} for p in parameters], lr=0.1)


def cycle(optimizer: torch.optim.Optimizer) -> Any:
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=20)


@pytest.mark.parametrize(
    ("task", "why"),
    [
        (with_momentum(0.9, dampening=0.5), "its gradients are dampened"),
        (replace(perceptron(), optimizer=several), "its groups have several kinds of it"),
        (replace(with_momentum(0.9), schedule=cycle), "its schedule moves it"),
    ],
)
def test_momentum_that_cannot_go_ahead_is_refused(task: Task, why: str) -> None:
    graph, machines = capture(task, precision="fp64"), cluster_of(3)
    with pytest.raises(InputError, match=why):
        call("ddp(codec=dgc)", graph, machines)
    call("ddp(codec=topk)", graph, machines)


def test_a_rule_with_momentum_of_its_own_is_refused() -> None:
    graph, machines = capture(with_momentum(0.9), precision="fp64"), cluster_of(3)
    with pytest.raises(InputError, match="rule=lamb has one of its own"):
        lower(graph, call("ddp(codec=dgc,rule=lamb)", graph, machines), machines)


def test_everything_sent_and_masked_is_plain_sgd() -> None:
    """SP-03: just below ratio 1 all of these few numbers are sent, and every momentum is forgotten at once."""
    masked = weights(with_momentum(0.9), "ddp(codec=dgc(ratio=0.9999))")
    assert difference(masked, weights(with_momentum(0.0), "single")) <= TOLERANCE
    assert difference(masked, weights(with_momentum(0.9), "single")) > TOLERANCE


def test_a_worker_bounds_its_part_of_the_sum() -> None:
    """SP-03: at the norm thr / sqrt(p), which it leaves alone where it is below."""
    task, machines = with_momentum(0.0), cluster_of(3)
    graph = capture(task, precision="fp64")

    def after(clip: float) -> dict[str, torch.Tensor]:
        plan = call(f"ddp(codec=dgc(ratio=1,clip={clip}))", graph, machines)
        return train_in_process(Workload(task, graph, precision="fp64"), plan, machines, 1)[0][0].leaves

    def theirs(factor: Callable[[float], float]) -> dict[str, torch.Tensor]:
        one = fresh(task, seed=0, precision="fp64")
        parts = [one.gradients(0, [(4 * w, 4)], 12) for w in range(3)]
        for part in parts:
            norm = float(torch.cat([g.flatten() for g in part]).norm())
            for p, g in zip(one.model.parameters(), part, strict=True):
                p.data -= 0.1 * factor(norm) * g
        return dict(one.model.named_parameters())

    for clip, bound in ((0.02, 0.02 / 3**0.5), (1e6, 1e6)):
        assert difference(after(clip), theirs(lambda norm, bound=bound: min(bound / norm, 1.0))) <= 1e-6
    assert difference(after(0.02), theirs(lambda norm: min(0.02 / 3 / norm, 1.0))) > 1e-5


def test_without_momentum_it_is_topk() -> None:
    """SP-03: momentum 0 and no bound are SP-02, to the bit."""
    task = with_momentum(0.0)
    ours, theirs = (weights(task, f"ddp(codec={name}(ratio=0.1))") for name in ("dgc", "topk"))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_nothing_is_lost_and_what_was_sent_is_forgotten() -> None:
    """SP-03: the sum of all that was sent and v is that of all u; both are zero where something was sent."""
    codec = Codec("dgc", settings=(("ratio", 0.05),))
    kernel, draw = kernel_of(codec), torch.Generator().manual_seed(1)
    u, v, sent, every = (torch.zeros(400, dtype=torch.float64) for _ in range(4))
    message = torch.zeros(coded_size(codec, 400, 8), dtype=torch.uint8)
    for _ in range(30):
        u.mul_(0.9).add_(torch.randn(400, dtype=torch.float64, generator=draw))
        every += u
        v += u
        kernel.encode(v, message, back=True)
        kernel.clear(message, u)
        said = torch.zeros_like(v)
        kernel.decode(message, said)
        sent += said
        assert int((said != 0).sum()) == 20
        assert not u[said != 0].any()
        assert not v[said != 0].any()
    assert torch.allclose(sent + v, every, rtol=0, atol=1e-11)


def test_each_worker_keeps_a_velocity_of_its_own() -> None:
    task, machines = with_momentum(0.9), cluster_of(3)
    graph = capture(task)
    states, _ = train_in_process(Workload(task, graph), call("ddp(codec=dgc(ratio=0.1))", graph, machines), machines, 3)
    held = [states[rank].kept[Space.VELOCITY, "b0"] for rank in range(3)]
    assert not held[0].equal(held[1])
    assert all(0 < float(one.count_nonzero()) < one.numel() for one in held)
    assert not any("momentum_buffer" in one for one in states[0].optimizer["b0"].state.values())


def test_the_ramp_thins_out() -> None:
    """SP-03: a quarter, a sixteenth, ... then the codec's own ratio; a codec without a ratio has no ramp."""
    graph, machines = capture(perceptron()), cluster_of(3)
    stretches = lower(graph, call("pipe_sgd(codec=dgc,ramp=5,warmup=7)", graph, machines), machines)
    ratios = [dict(stretch.program.codings[0].codec.settings).get("ratio", 0.001) for stretch in stretches]
    assert ratios == [0.25, 0.25, 0.0625, 0.015625, 0.00390625, 0.001]
    assert [stretch.steps for stretch in stretches] == [7, 5, 5, 5, 5, 0]
    assert [stretch.program.slots for stretch in stretches] == [1, 2, 2, 2, 2, 2]
    with pytest.raises(InputError, match="ratio"):
        call("ddp(codec=q8,ramp=5)", graph, machines)
