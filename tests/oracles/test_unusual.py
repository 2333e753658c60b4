"""Models, losses and schedules as people write them: trained as plain PyTorch trains them, or refused with a reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from partita.checkpoints.checkpoint import SavePolicy, place_of
from partita.checkpoints.restore import open_checkpoint
from partita.errors import TaskError
from partita.oracles.check import TOLERANCE, checked
from partita.recipes.catalogue import call
from partita.runs.assembly import train_in_process
from partita.runtime.workload import Workload
from partita.task import Task
from tests.captures import capture
from tests.small import cluster_of

PARTS = "one_f_one_b(stages=2,recompute=full)"
Batch = tuple[Tensor, Tensor]


def entropy(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def of(model: Callable[[], nn.Module], loss: Callable[..., Tensor] = entropy, **more: Any) -> Task:
    drawn = torch.Generator().manual_seed(0)
    data = TensorDataset(torch.randn(32, 6, generator=drawn), torch.randint(0, 3, (32,), generator=drawn))
    return Task("unusual", model, loss, data, partial(torch.optim.SGD, lr=0.05), batch_size=8, **more)


def layers() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


class Flow(nn.Module):
    """An invertible map whose weight lies column by column (Glow)."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linalg.qr(torch.randn(6, 6))[0])

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


def likelihood(model: Flow, batch: Batch) -> Tensor:
    return model(batch[0]).square().mean() - torch.linalg.slogdet(model.weight)[1]


def gaussian(model: nn.Sequential, batch: Batch) -> Tensor:
    """With a factor and an inverse, which ask whether a matrix was singular."""
    weight = model[0].weight
    spread = weight @ weight.t() + torch.eye(8, dtype=weight.dtype)
    return entropy(model, batch) + torch.linalg.cholesky(spread).mean() + torch.linalg.inv(spread).square().mean()


class Keeps(nn.Module):
    """Keeps what it made of the last samples."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        self.penalty = self.inner(x).square().mean()
        found: Tensor = self.outer(torch.tanh(self.inner(x)))
        return found


def penalised(model: Keeps, batch: Batch) -> Tensor:
    return entropy(model, batch) + 0.1 * model.penalty


def taught() -> Callable[..., Tensor]:
    """By a teacher that the loss keeps."""
    teacher = layers().eval()

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        with torch.no_grad():
            wanted = teacher(batch[0]).softmax(-1)
        return F.kl_div(model(batch[0]).log_softmax(-1), wanted, reduction="batchmean")

    return loss


class Halving:
    """A schedule that can take a step, and nothing else."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer, self.taken = optimizer, 0

    def step(self) -> None:
        self.taken += 1
        for group in self.optimizer.param_groups:
            group["lr"] = 0.05 * 0.5 ** (self.taken // 2)


@pytest.mark.parametrize(
    ("task", "plan"),
    [
        (of(Flow, likelihood), "zero1"),
        (of(layers, gaussian), PARTS),
        (of(Keeps, penalised), "post_local_sgd(switch=1,period=2)"),
        (of(Keeps, penalised), "ad_psgd"),
        (of(layers, taught()), PARTS),
        (of(layers, schedule=Halving), "local_sgd(period=2)"),
    ],
)  # fmt: skip
def test_it_trains_as_plain_pytorch_does(task: Task, plan: str) -> None:
    machines = cluster_of(2)
    found = checked(task, lambda graph: call(plan, graph, machines), machines, steps=4)
    assert found["max_difference"] <= TOLERANCE, found["because"]


def test_a_schedule_goes_on_where_it_was(tmp_path: Path) -> None:
    task, machines = of(layers, schedule=Halving), cluster_of(2)
    graph = capture(task)
    plan = call("ddp", graph, machines)
    run = partial(train_in_process, Workload(task, graph, seed=1), plan, machines)
    whole, _ = run(6)
    run(3, keep=SavePolicy(str(tmp_path), 3))
    again, _ = run(6, saved=open_checkpoint(place_of(tmp_path, 3)))
    for name, weight in whole[0].leaves.items():
        assert torch.equal(again[0].leaves[name], weight), name


class Momentum(nn.Module):
    """A student, a frozen teacher whose weights follow it, and a frozen centre that follows the samples."""

    def __init__(self, opaque: bool = False) -> None:
        super().__init__()
        self.student, self.teacher, self.opaque = layers(), layers().requires_grad_(False), opaque
        self.teacher.load_state_dict(self.student.state_dict())
        self.centre = nn.Parameter(torch.zeros(3), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            for own, mine in zip(self.student.parameters(), self.teacher.parameters(), strict=True):
                mine.mul_(0.9).add_(own, alpha=0.1)
            taught = self.teacher(x)
        if self.opaque and float(x.norm()) > 0:
            taught = taught.clone()
        out = self.student(x) - taught + self.centre
        with torch.no_grad():
            self.centre.mul_(0.9).add_(taught.mean(0), alpha=0.1)
        return out


@pytest.mark.parametrize("opaque", [False, True])
@pytest.mark.parametrize("plan", ["ddp(microbatches=2)", "zero3", "ps_async", "local_sgd(period=2)", PARTS])
def test_frozen_weights_that_a_step_moves_move_as_in_one_process(plan: str, opaque: bool) -> None:
    if opaque and plan == PARTS:
        plan = "pipe_sgd"
    machines = cluster_of(2)
    found = checked(of(partial(Momentum, opaque)), lambda graph: call(plan, graph, machines), machines)
    assert found["max_difference"] <= TOLERANCE, found["because"]


def test_frozen_weights_that_a_step_moves_are_kept_in_half_precision() -> None:
    machines = cluster_of(2)
    found = checked(of(Momentum), lambda graph: call("ddp(precision=bf16)", graph, machines), machines)
    assert found["equal"], found


def test_frozen_weights_that_a_step_moves_go_on_where_they_were(tmp_path: Path) -> None:
    task, machines = of(Momentum), cluster_of(2)
    graph = capture(task)
    work = Workload(task, graph, seed=1, keyed=True)
    ddp, zero3 = (call(text, graph, machines) for text in ("ddp", "zero3"))
    whole, _ = train_in_process(work, ddp, machines, 6)
    train_in_process(work, ddp, machines, 3, keep=SavePolicy(str(tmp_path), 3))
    saved = open_checkpoint(place_of(tmp_path, 3))
    again, _ = train_in_process(work, ddp, machines, 6, saved=saved)
    other, _ = train_in_process(work, zero3, machines, 6, saved=saved)
    for name, weight in whole[0].leaves.items():
        assert torch.equal(again[0].leaves[name], weight), name
        if name.startswith(("teacher", "centre")):
            assert torch.allclose(other[0].leaves[name], weight, atol=1e-6), name


def test_weights_that_share_memory_are_refused() -> None:
    def tied() -> nn.Module:
        model = nn.Sequential(nn.Linear(6, 8, bias=False), nn.Linear(8, 6, bias=False))
        model[1].weight.data = model[0].weight.data.t()
        return model

    def side_by_side() -> nn.Module:
        model, whole = layers(), torch.randn(6, 16)
        model.left, model.right = nn.Parameter(whole[:, :8]), nn.Parameter(whole[:, 8:])
        return model

    def mirrored() -> nn.Module:
        model = layers()
        model.register_buffer("mirror", model[0].weight.data[2:4])
        return model

    def staggered() -> nn.Module:
        model, whole = layers(), torch.randn(10)
        model.low, model.middle, model.high = (nn.Parameter(whole[i : i + 4]) for i in (0, 4, 6))
        return model

    def twice() -> nn.Module:
        model, whole = layers(), torch.randn(6)
        model.register_buffer("all", whole)
        model.register_buffer("some", whole[2:4])
        return model

    with pytest.raises(TaskError, match=r"'middle' and 'high' share memory"):
        capture(of(staggered))
    assert capture(of(twice)).operators
    with pytest.raises(TaskError, match=r"'0\.weight' and 'mirror' share memory"):
        capture(of(mirrored))
    with pytest.raises(TaskError, match=r"'0\.weight' and '1\.weight' share memory"):
        capture(of(tied))
    assert capture(of(side_by_side)).operators


def test_samples_that_no_seed_makes_are_said_to_be() -> None:
    class Drawn(torch.utils.data.Dataset[Batch]):
        def __len__(self) -> int:
            return 32

        def __getitem__(self, index: int) -> Batch:
            return torch.tensor(np.random.default_rng().standard_normal(6), dtype=torch.float32), torch.tensor(
                index % 3
            )

    machines = cluster_of(2)
    task = replace(of(layers), data=Drawn())
    found = checked(task, lambda graph: call("ddp", graph, machines), machines)
    assert (found["equal"], "made twice, ends" in found["because"]) == (False, True)


def test_a_hook_that_sees_parts_is_named() -> None:
    def hooked() -> nn.Module:
        model = nn.Linear(6, 3)
        model.weight.register_hook(lambda gradient: gradient.clamp(-0.05, 0.05))
        return model

    machines = cluster_of(2)
    assert checked(of(hooked), lambda graph: call("single", graph, machines), machines)["equal"]
    found = checked(of(hooked), lambda graph: call("ddp", graph, machines), machines)
    assert (found["equal"], "'weight' has a hook" in found["because"]) == (False, True)
