"""ME-11: training in half precision is that of plain PyTorch with the same casts, whatever divides it over ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from partita.checkpoints.checkpoint import SavePolicy
from partita.checkpoints.restore import open_checkpoint
from partita.errors import RunError
from partita.graph.graph import Graph
from partita.lowering.lower import last_program
from partita.oracles.captured import Captured
from partita.oracles.check import ROUNDING, TOLERANCE, checked
from partita.oracles.half_precision import half_precision
from partita.program.instruction import Pack
from partita.program.layout import WEIGHT
from partita.program.program import Role
from partita.program.scaling import LARGEST, Scaling
from partita.recipes.catalogue import call
from partita.runs.assembly import initial, train_in_process
from partita.runtime.leg import legs
from partita.runtime.scaler import Scaler
from partita.runtime.state import State
from partita.runtime.workload import Workload
from partita.task import Task
from partita.tracing.update_units import states_of
from tests.captures import capture
from tests.checkpoints.test_checkpoints import moody
from tests.runtime.padded import bounded, padded
from tests.small import Numbers, cluster_of, perceptron

QUICK = (
    ("single(precision=bf16)", 1), ("ddp(precision=fp16,sums=fp32,microbatches=2)", 3),
    ("pipe_sgd(precision=fp16,staleness=2,bucket_bytes=100)", 2), ("zero3(precision=fp16,bucket_bytes=50)", 2),
    ("one_f_one_b(stages=2,data=2,shard=parameters,precision=fp16,sums=fp32)", 4),
)  # fmt: skip
PLANS = (
    *QUICK, ("single(precision=fp16,microbatches=3,recompute=full)", 1), ("ddp(precision=bf16,bucket_bytes=100)", 3),
    ("zero1(precision=fp16,bucket_bytes=100)", 3), ("zero2(precision=bf16,sums=fp32,microbatches=2)", 3),
    ("gpipe(stages=3,microbatches=4,precision=fp16)", 3), ("one_f_one_b(stages=2,data=2,precision=bf16)", 4),
    ("interleaved(stages=2,chunks=2,precision=fp16,sums=fp32)", 2), ("zero_bubble(stages=3,precision=fp16)", 3),
)  # fmt: skip
TASKS = {
    "perceptron": perceptron, "padded": padded, "bounded": bounded,
    "moody": lambda: replace(moody(), batch_size=24),  # batch statistics of three samples at least
}  # fmt: skip


BARE = "gpipe(stages=3,microbatches=4,precision=fp16)"
LONELY = "one_f_one_b(stages=3,data=2,shard=optimizer,precision=fp16,sums=fp32)"


def quick_first(plans: Sequence[Any], quick: Sequence[Any]) -> list[Any]:
    """The plans as parameters, all but the quick ones for `make check`."""
    return [one if one in quick else pytest.param(*one, marks=pytest.mark.slow) for one in plans]


def trained(
    task: Task, plan: str, size: int, steps: int, graph: Graph | None = None, **more: Any
) -> tuple[dict[int, State], dict[int, float]]:
    graph, machines = graph or capture(task), cluster_of(size)
    return train_in_process(Workload(task, graph), call(plan, graph, machines), machines, steps, **more)


@pytest.mark.parametrize(("plan", "size"), quick_first(PLANS, QUICK))
def test_a_plan_is_the_same_training_in_one_process(plan: str, size: int) -> None:
    """Bit by bit, where rounding does not depend on who sums; masters in fp64 and in fp32."""
    machines = cluster_of(size)
    found = checked(perceptron(), lambda graph: call(plan, graph, machines), machines, steps=4)
    assert (found["semantics"], found["max_difference"], found["fp32_difference"]) == ("lossy", 0.0, 0.0)


@pytest.mark.slow
@pytest.mark.parametrize(("plan", "size"), PLANS)
@pytest.mark.parametrize("name", list(TASKS)[1:])
def test_on_batch_statistics_bounds_and_weights(name: str, plan: str, size: int) -> None:
    machines = cluster_of(size)
    found = checked(TASKS[name](), lambda graph: call(plan, graph, machines), machines, steps=4)
    assert found["max_difference"] <= (TOLERANCE if "sums=fp32" in plan else ROUNDING["bfloat16"])


@pytest.mark.parametrize("plan", [BARE, pytest.param(LONELY, marks=pytest.mark.slow)])
def test_a_rank_without_weights_scales_the_loss_as_all(plan: str) -> None:
    """The last of three stages has the loss and nothing that is trained; its scale overflows, and is halved, as all."""
    size = 6 if "data=2" in plan else 3
    task, machines = bounded(), cluster_of(size)
    graph = capture(task)
    made = call(plan, graph, machines)
    bare = {rank for role in last_program(graph, made, machines).roles for rank in role.ranks if not packs(role)}
    states, _ = train_in_process(Workload(task, graph), made, machines, 3)
    assert bare == ({4, 5} if size == 6 else {2})
    assert len({(state.scaler.scale, state.scaler.good) for state in states.values() if state.scaler}) == 1
    assert states[size - 1].scaler is not None
    assert states[size - 1].scaler.scale < 2.0**16
    found = checked(task, lambda graph: call(plan, graph, machines), machines)
    assert found["max_difference"] <= (TOLERANCE if "sums" in plan else ROUNDING["float16"])


def packs(role: Role) -> bool:
    """Whether a role makes gradients of weights."""
    return any(isinstance(i.act, Pack) and i.act.bucket != WEIGHT for i in role.instructions)


class Careful(nn.Module):
    """Casts by itself: its norm is taken in fp32 and rounded back."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.last = nn.Parameter(torch.ones(6)), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.to(self.scale.dtype)
        wide = x.float()
        return self.last(self.scale * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype))


def test_a_model_that_casts_by_itself_is_what_was_captured() -> None:
    """Its own casts are rounded at other places; then the step as a whole is the reference, and no fault passes."""
    task, machines = replace(perceptron(), name="careful", model=Careful), cluster_of(2)
    graph = capture(task)
    plan = call("zero1(precision=bf16)", graph, machines)
    parts = legs(graph, plan, machines, 3)
    chosen = half_precision(task, parts, seed=0, precision="fp32", graph=graph).backward
    assert isinstance(chosen.__self__, Captured)
    found = checked(task, lambda graph: call("zero1(precision=bf16)", graph, machines), machines)
    assert (found["equal"], found["max_difference"]) == (True, 0.0)


class Pairing(nn.Module):
    """Bilinear layers of samples, which are wide, and of what a short layer made of them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.wide, self.mixed = nn.Linear(6, 4), nn.Bilinear(6, 6, 3), nn.Bilinear(6, 4, 3, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.wide(x, x) + self.mixed(x, input2=self.first(x))


class Counted(Numbers):
    """Each sample has a Python float, which a collation makes a double, as its weight."""

    def __getitem__(self, index: int) -> Any:
        return *super().__getitem__(index), 1.0 + index / 24


def test_doubles_among_the_samples_are_as_in_a_run() -> None:
    def loss(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
        each = nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")
        return (each * batch[2]).mean()

    task, machines = replace(perceptron(), loss=loss, data=Counted()), cluster_of(2)
    found = checked(task, lambda graph: call("ddp(precision=bf16)", graph, machines), machines)
    assert (found["equal"], found["because"]) == (True, "")


@pytest.mark.parametrize("plan", ["ddp(precision=bf16)", "ddp(precision=fp16,sums=fp32)"])
def test_bilinear_layers_take_what_they_are_given(plan: str) -> None:
    task, machines = replace(perceptron(), name="pairing", model=Pairing), cluster_of(2)
    graph = capture(task)
    parts = legs(graph, call(plan, graph, machines), machines, 3)
    chosen = half_precision(task, parts, seed=0, precision="fp32", graph=graph).backward
    assert not isinstance(chosen.__self__, Captured)
    assert checked(task, lambda graph: call(plan, graph, machines), machines)["equal"]


class Centred(nn.Module):
    """Looks at a running mean of what it has given."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(6, 3)
        self.register_buffer("centre", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.last(x)
        self.centre.mul_(0.5).add_(y.detach().mean(0))
        return y - self.centre


@pytest.mark.parametrize("plan", ["ddp(precision=bf16,sums=fp32)", "zero1(precision=fp16,sums=fp32,microbatches=2)"])
def test_each_worker_looks_at_buffers_of_its_own(plan: str) -> None:
    task, machines = replace(perceptron(), name="centred", model=Centred), cluster_of(2)
    found = checked(task, lambda graph: call(plan, graph, machines), machines)
    assert found["max_difference"] <= TOLERANCE


def by_hand(task: Task, short: torch.dtype, steps: int, scale: float) -> dict[str, torch.Tensor]:
    """Every cast written out: masters, rounded weights, products in `short`, the loss in fp32."""
    model, _ = initial(task, 0)
    masters = dict(model.named_parameters())
    optimizer = task.optimizer(masters.values())
    order = torch.randperm(len(task.data), generator=torch.Generator().manual_seed(0))
    for step in range(steps):
        w = {name: p.detach().to(short).requires_grad_() for name, p in masters.items()}
        batch = order[step * 12 : (step + 1) * 12]
        h = task.data.x[batch].to(short)
        for layer in (0, 2):
            h = torch.relu(torch.addmm(w[f"{layer}.bias"], h, w[f"{layer}.weight"].t()))
        out = torch.addmm(w["4.bias"], h, w["4.weight"].t())
        loss = nn.functional.cross_entropy(out.float(), task.data.y[batch])
        (loss * scale).backward()
        for name, p in masters.items():
            p.grad = w[name].grad.float() / scale
        optimizer.step()
    return masters


@pytest.mark.parametrize(("precision", "short", "scale"), [("bf16", torch.bfloat16, 1), ("fp16", torch.float16, 2**16)])
def test_casts_by_hand(precision: str, short: torch.dtype, scale: float) -> None:
    states, _ = trained(perceptron(), f"single(precision={precision})", 1, 4)
    other, _ = trained(perceptron(), "single", 1, 4)
    for name, weight in by_hand(perceptron(), short, 4, scale).items():
        assert torch.equal(states[0].leaves[name], weight), name
        assert not torch.equal(states[0].leaves[name], other[0].leaves[name])
        assert states[0].leaves[name].dtype == torch.float32


class Faint(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Samples whose gradients are about 2^-26."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return 1 + torch.arange(4.0) / 8, torch.tensor(index % 3 / 4.0 - 1.5)


def faint(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return (model(batch[0]).squeeze(1).float() * batch[1]).sum() * (2.0**-26 / len(batch[1]))


def test_faint_gradients_need_a_scale() -> None:
    """ME-11: gradients of 2^-26 are 0 in fp16, and within 1e-3 once the loss is scaled."""
    task = Task("faint", lambda: nn.Linear(4, 1), faint, Faint(), partial(torch.optim.SGD, lr=2.0**20), 12)
    start = initial(task, 0)[1]["weight"].detach().clone()
    exact = trained(task, "single", 1, 1)[0][0].leaves["weight"] - start
    scaled = trained(task, "single(precision=fp16)", 1, 1)[0][0].leaves["weight"] - start
    lost = trained(task, "single(precision=fp16,loss_scale=1,scale_window=0)", 1, 1)[0][0].leaves["weight"] - start
    assert not lost.any()
    assert exact.abs().min() > 0
    assert torch.allclose(scaled, exact, rtol=1e-3, atol=0)


@pytest.mark.parametrize("lag", [0, 1, 100])
def test_scales_are_kept_for_as_long_as_gradients_are_in_flight(lag: int) -> None:
    """ME-11, DP-04: a gradient is divided by the scale that its own loss had, and nothing older stays."""
    scaler, used = Scaler(Scaling(2.0, 9)), []
    scaler.begin()
    for round in range(2 * lag + 20):
        if lag:  # it is C that says with which scale the round begins
            scaler.bound(1.0, inf, round, lag, 0)
        used.append(scaler.at(round))
        if not lag:
            scaler.bound(1.0, inf, round, lag, 0)
        assert round < lag or scaler.factors[round] == 1.0 / used[round - lag]
    assert len(scaler.loss) <= lag + 2
    assert len(scaler.factors) == lag + 1


def poisoned(at: int) -> Task:
    """Step `at` has one sample too large for fp16."""
    task = perceptron()
    order = torch.randperm(len(task.data), generator=torch.Generator().manual_seed(0))
    task.data.x[order[at * 12 + 7]] = 1e6
    return replace(task, optimizer=partial(torch.optim.AdamW, lr=0.01))


QUICK_SKIPS = (
    ("ddp(precision=fp16,bucket_bytes=100)", 3), ("zero3(precision=fp16,bucket_bytes=50)", 2),
    ("one_f_one_b(stages=2,data=2,precision=fp16)", 4),
)  # fmt: skip
SKIPS = (
    *QUICK_SKIPS, ("single(precision=fp16)", 1), ("zero1(precision=fp16)", 2), ("pipe_sgd(precision=fp16)", 2),
    ("one_f_one_b(stages=2,precision=fp16)", 2),
)  # fmt: skip


@pytest.mark.parametrize(("plan", "size"), quick_first(SKIPS, QUICK_SKIPS))
def test_a_step_that_overflows_changes_nothing_anywhere(plan: str, size: int) -> None:
    """ME-11: weights, moments and counts of the step before, on all ranks, though one had the bad sample; the scale is
    halved on all; and the step after goes on."""
    task = poisoned(2)
    graph = capture(task)
    before, _ = trained(task, plan, size, 2, graph)
    after, _ = trained(task, plan, size, 3, graph)
    later, _ = trained(task, plan, size, 4, graph)
    for rank, state in after.items():
        assert state.scaler is not None
        assert (state.scaler.scale, state.scaler.good) == (2.0**15, -1)
        for name, flat in state.master.items():
            assert torch.equal(flat, before[rank].master[name])
            assert not torch.equal(flat, later[rank].master[name])
            now, then = (
                states_of(one.optimizer[name], one.views[name], one.units[name]) for one in (state, before[rank])
            )
            for mine, was in zip(now, then, strict=True):
                assert mine.keys() == was.keys()
                assert mine
                assert all(torch.equal(mine[key], was[key]) for key in mine)
    assert {state.scaler.good for state in later.values() if state.scaler} == {1}


def test_without_a_scale_what_overflows_ends_the_run() -> None:
    """bf16 has the range of fp32: what is no number there is a fault, with its rank."""
    task = poisoned(1)
    task.data.x[task.data.x > 1e5] = torch.inf
    with pytest.raises(RunError, match=r"not finite|is nan|is inf"):
        trained(task, "ddp(precision=bf16)", 3, 3)


def test_a_run_in_which_no_scale_helps_is_given_up() -> None:
    task = perceptron()
    task.data.x[:] = 1e6
    with pytest.raises(RunError, match="no scale helps"):
        trained(task, "ddp(precision=fp16)", 2, 60)


def taught() -> Task:
    """Labels that a linear map gives, so that what is learnt does not hang on single samples."""
    task, teacher = perceptron(), torch.randn(6, 3, generator=torch.Generator().manual_seed(1))
    task.data.y = (task.data.x @ teacher).argmax(1)
    return replace(task, optimizer=partial(torch.optim.SGD, lr=0.05))


def test_the_loss_follows_that_of_fp32() -> None:
    """ME-11: within 1 %, tenth by tenth of the steps, while it falls by a fifth; the curves do differ."""
    graph = capture(taught())
    found = []
    for precision in ("fp32", "bf16", "fp16"):
        _, losses = trained(taught(), f"ddp(precision={precision})", 2, 100, graph)
        found.append(torch.tensor([float(loss) for loss in losses.values()]).view(10, 10).mean(1))
    assert found[0][-1] < 0.8 * found[0][0]
    for curve in found[1:]:
        assert not torch.equal(curve, found[0])
        assert torch.allclose(curve, found[0], rtol=0.01, atol=0)


@given(st.lists(st.booleans(), max_size=60), st.integers(1, 5), st.integers(-4, 20))
def test_the_scale_moves_as_torchs(finite: list[bool], growth: int, power: int) -> None:
    """torch.amp.GradScaler's rule, but for the limit."""
    scale, tracker = torch.tensor([2.0**power]), torch.zeros(1, dtype=torch.int32)
    ours, good = 2.0**power, 0
    for one in finite:
        torch._amp_update_scale_(scale, tracker, torch.tensor([float(not one)]), 2.0, 0.5, growth)
        ours, good = Scaling(1.0, growth).after(ours, good, one)
        assert ours == min(scale.item(), LARGEST)
        assert Scaling(1.0, 0).after(ours, good, one)[0] == ours


@pytest.mark.parametrize(
    ("plan", "size"),
    [
        ("pipe_sgd(staleness=2,precision=fp16,scale_window=2)", 2),
        pytest.param("ddp(precision=fp16,scale_window=2)", 3, marks=pytest.mark.slow),
        ("zero2(precision=bf16,bucket_bytes=100)", 2), ("zero3(precision=fp16,scale_window=3)", 3),
        ("one_f_one_b(stages=2,precision=fp16,scale_window=3)", 2),
    ],
)  # fmt: skip
def test_a_run_goes_on_with_its_masters_and_its_scale(plan: str, size: int, tmp_path: Path) -> None:
    """Bit for bit from every checkpoint, over a step that was skipped and scales that grew."""
    task = poisoned(3)
    task.data.x[task.data.x > 1e5] = 1e6 if "fp16" in plan else 2.0
    graph = capture(task)
    unbroken, losses = trained(task, plan, size, 6, graph, keep=SavePolicy(str(tmp_path), 1, 99))
    for step in (1, 3, 4, 5):
        saved = open_checkpoint(tmp_path / "checkpoints" / f"step-{step}")
        again, told = trained(task, plan, size, 6, graph, saved=saved)
        assert str(told) == str(losses)
        for rank, state in unbroken.items():
            assert (state.scaler.scale, state.scaler.good) == (again[rank].scaler.scale, again[rank].scaler.good)
            for name in state.leaves:
                if not name.startswith("constant") and name != "tangent":
                    assert torch.equal(state.leaves[name], again[rank].leaves[name]), (step, name)


@pytest.mark.parametrize("plan", ["single", "zero3(precision=bf16)", "gpipe(stages=2,precision=fp16)"])
def test_a_checkpoint_of_half_precision_under_another_plan(plan: str, tmp_path: Path) -> None:
    """What goes on are the masters: the same weights to the bit, also in fp32 and divided otherwise."""
    graph = capture(perceptron())
    first, _ = trained(perceptron(), "pipe_sgd(precision=fp16)", 2, 4, graph, keep=SavePolicy(str(tmp_path), 9, 1))
    saved = open_checkpoint(tmp_path / "checkpoints" / "step-4")
    taken, _ = trained(perceptron(), plan, 2 if "(" in plan else 1, 4, graph, saved=saved)
    for name in first[0].leaves:
        if name in dict(initial(perceptron(), 0)[1]):
            owner = next(state for state in taken.values() if name in state.leaves)
            assert torch.equal(owner.leaves[name], first[0].leaves[name]), name
