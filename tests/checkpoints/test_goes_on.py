"""What a run goes on with from a checkpoint of another plan, against loops in plain PyTorch that share nothing with the
runtime: gradients in flight, schedules, momenta, scales, frozen weights, generators."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR

from partita.checkpoints.checkpoint import SavePolicy
from partita.checkpoints.restore import Checkpoint, open_checkpoint
from partita.oracles.check import TOLERANCE, difference, gathered
from partita.recipes.catalogue import call
from partita.runs.assembly import train_in_process
from partita.runtime.generators import begin_draws, random_states, set_random_states
from partita.runtime.state import State
from partita.runtime.workload import Workload
from partita.task import Task
from tests.captures import capture
from tests.programs import program_by
from tests.small import Numbers, cluster_of, perceptron

SEED = 5
Weights = Mapping[str, torch.Tensor]


def trained(task: Task, plan: str, size: int, steps: int, **more: Any) -> tuple[Weights, dict[int, State]]:
    """The whole weights after a run in fp64 (or the plan's precision), and the ranks' states."""
    precision = more.pop("precision", "fp64")
    graph, machines = capture(task, precision=precision), cluster_of(size)
    made = call(plan, graph, machines)
    states, _ = train_in_process(Workload(task, graph, seed=SEED, precision=precision), made, machines, steps, **more)
    found = gathered(program_by(plan, graph, machines), states)
    return {p.name: found[p.name] for p in graph.parameters}, states


def saved_by(task: Task, plan: str, size: int, step: int, out: Path, **more: Any) -> Checkpoint:
    """The checkpoint that a run writes after `step` steps, of which gradients may be in flight."""
    trained(task, plan, size, step + 2, keep=SavePolicy(str(out), step, 9), **more)
    return open_checkpoint(out / "checkpoints" / f"step-{step}")


class Plainly:
    """A model in fp64 with the task's optimizer and schedule, and the gradients of any samples of a step."""

    def __init__(self, task: Task) -> None:
        torch.manual_seed(SEED)
        self.task, self.model = task, task.model().double()
        self.weights = list(self.model.parameters())
        self.optimizer = task.optimizer(self.weights)
        self.schedule = task.schedule(self.optimizer) if task.schedule else None
        self.order = torch.randperm(len(task.data), generator=torch.Generator().manual_seed(SEED))

    def gradients(self, step: int, first: int = 0, count: int = 12) -> list[torch.Tensor]:
        """Of the mean loss of `count` samples of a step's minibatch, from its sample `first` on."""
        picked = self.order[step * 12 + first : step * 12 + first + count]
        loss = nn.functional.cross_entropy(self.model(self.task.data.x[picked].double()), self.task.data.y[picked])
        return list(torch.autograd.grad(loss, self.weights))

    def apply(self, gradients: list[torch.Tensor]) -> None:
        """One step of the optimizer, bounded as the task says."""
        for w, g in zip(self.weights, gradients, strict=True):
            w.grad = g.clone()
        if self.task.clip_norm:
            nn.utils.clip_grad_norm_(self.weights, self.task.clip_norm)
        self.optimizer.step()
        if self.schedule:
            self.schedule.step()

    @property
    def named(self) -> Weights:
        """Its weights by name."""
        return {name: p.detach() for name, p in self.model.named_parameters()}


def cycled() -> Task:
    """Adam whose rate and first beta a schedule moves at every step, under a bound."""
    return replace(
        perceptron(), name="cycled", data=Numbers(96), clip_norm=0.5, optimizer=lambda p: torch.optim.AdamW(p, lr=0.05),
        schedule=lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.05, total_steps=9),
    )  # fmt: skip


def late_then_in_lockstep(task: Task, lag: int, until: int, steps: int) -> Weights:
    """Gradients are applied `lag` steps late up to step `until`, there all that are in flight, then each at once."""
    one, flying = Plainly(task), deque[list[torch.Tensor]]()
    for step in range(steps):
        flying.append(one.gradients(step))
        while flying and (len(flying) > lag or step >= until - 1):
            one.apply(flying.popleft())
    return one.named


@pytest.mark.parametrize("after", ["ddp(bucket_bytes=200)", "zero1(bucket_bytes=200)", "zero3(bucket_bytes=100)"])
def test_what_is_in_flight_is_applied_and_schedules_go_on(after: str, tmp_path: Path) -> None:
    """DP-04, ME-01, ME-03: also where each rank then keeps a part only, with its rate and its betas of then."""
    saved = saved_by(cycled(), "pipe_sgd(staleness=2)", 3, 4, tmp_path)
    assert saved.manifest.flying == 3
    found, _ = trained(cycled(), after, 3, 7, saved=saved)
    whole = late_then_in_lockstep(cycled(), 2, 4, 7)
    assert difference(found, whole) <= TOLERANCE
    assert difference(found, late_then_in_lockstep(cycled(), 0, 4, 7)) > 1e-4


def in_groups() -> Task:
    """Matrices and biases with rates and a decay of their own, which a schedule takes down by a part at each step."""

    def optimizer(parameters: Any) -> torch.optim.Optimizer:
        split: dict[bool, list[nn.Parameter]] = {True: [], False: []}
        for p in parameters:
            split[p.ndim > 1].append(p)
        return torch.optim.AdamW(
            [{"params": split[True], "weight_decay": 0.3}, {"params": split[False], "lr": 0.2}], 0.02
        )

    return replace(cycled(), name="in groups", optimizer=optimizer, schedule=partial(StepLR, step_size=1, gamma=0.7))


@pytest.mark.parametrize("after", ["zero1(bucket_bytes=1000)", "zero2(bucket_bytes=200)", "zero3(bucket_bytes=100)"])
def test_each_part_goes_on_with_the_settings_of_its_own_group(after: str, tmp_path: Path) -> None:
    """ME-01: what is in flight is applied to the whole first; a rank's part may begin in the midst of a bucket."""
    saved = saved_by(in_groups(), "pipe_sgd(staleness=2)", 3, 4, tmp_path)
    found, _ = trained(in_groups(), after, 3, 7, saved=saved)
    assert difference(found, late_then_in_lockstep(in_groups(), 2, 4, 7)) <= TOLERANCE


def test_what_is_in_flight_stays_so_under_a_plan_as_late(tmp_path: Path) -> None:
    """In the order in which it was computed, whatever the buckets."""
    saved = saved_by(cycled(), "pipe_sgd(staleness=2)", 3, 4, tmp_path)
    found, _ = trained(cycled(), "pipe_sgd(staleness=2,bucket_bytes=200)", 3, 7, saved=saved)
    assert difference(found, late_then_in_lockstep(cycled(), 2, 7, 7)) <= TOLERANCE


def test_momentum_is_the_mean_of_those_who_stepped_alone(tmp_path: Path) -> None:
    """DP-26: three workers after a period have the same weights and three momenta; who goes on alone takes their
    mean."""
    saved = saved_by(perceptron(), "local_sgd(period=2)", 3, 2, tmp_path)
    workers = [Plainly(perceptron()) for _ in range(3)]
    for step in range(2):
        for w, one in enumerate(workers):
            one.apply(one.gradients(step, 4 * w, 4))
    first = workers[0]
    with torch.no_grad():
        for together in zip(*(one.weights for one in workers), strict=True):
            momenta = [w.optimizer.state[p]["momentum_buffer"] for w, p in zip(workers, together, strict=True)]
            momenta[0].copy_(torch.stack(momenta).mean(0))
            together[0].copy_(torch.stack(list(together)).mean(0))
    for step in range(2, 4):
        first.apply(first.gradients(step))
    for after, size in (("single", 1), ("zero2(bucket_bytes=100)", 2)):
        found, _ = trained(perceptron(), after, size, 4, saved=saved)
        assert difference(found, first.named) <= TOLERANCE, after


@pytest.mark.parametrize("after", ["ddp", "zero3"])
def test_a_scale_goes_on_where_state_is_then_divided(after: str, tmp_path: Path) -> None:
    """ME-11: of four steps the second one overflowed, and two are in flight: half the scale, and no good step yet; two
    more make two, and a window of two doubles it again."""
    task = replace(perceptron(), data=Numbers(96))
    order = torch.randperm(len(task.data), generator=torch.Generator().manual_seed(SEED))
    task.data.x[order[19]] = 1e6
    knobs = "precision=fp16,loss_scale=1024"
    saved = saved_by(task, f"pipe_sgd({knobs},scale_window=9)", 2, 4, tmp_path, precision="fp32")
    assert saved.manifest.flying == 2
    for window, there in ((9, (512.0, 2)), (2, (1024.0, 0))):
        _, states = trained(
            task, f"{after}({knobs},scale_window={window})", 2, 6, saved=saved, precision="fp32"
        )  # fmt: skip
        assert {(s.scaler.scale, s.scaler.good) for s in states.values() if s.scaler} == {there}


def test_frozen_weights_are_those_that_the_run_began_with(tmp_path: Path) -> None:
    """A head is trained on a body that came from a file: the seed's body is not what a run goes on with."""

    def model() -> nn.Module:
        made = perceptron().model()
        made[0].requires_grad_(False)
        return made

    task = replace(perceptron(), name="adapted", model=model)
    torch.manual_seed(77)
    given = {name: p.detach().double() for name, p in model().named_parameters()}
    whole, _ = trained(task, "ddp", 2, 4, values=given)
    saved = saved_by(task, "ddp", 2, 2, tmp_path, values=given)
    for after in ("ddp", "zero3"):
        found, _ = trained(task, after, 2, 4, saved=saved)
        assert torch.equal(found["0.weight"], given["0.weight"]), after
        assert difference(found, whole) <= TOLERANCE


DRAWS: dict[str, Callable[[], float]] = {
    "torch": lambda: float(torch.rand(())), "python": random.random, "python's normal": lambda: random.gauss(0, 1),
    "numpy": np.random.rand, "numpy's normal": np.random.randn,
}  # fmt: skip


@pytest.mark.parametrize("odd", [False, True])
@pytest.mark.parametrize("name", DRAWS)
def test_every_generator_draws_on(name: str, odd: bool) -> None:
    """Normal numbers come in pairs: also with the second one of a pair still to come."""
    before, draw = random_states("cpu"), DRAWS[name]
    random.seed(1)
    np.random.seed(1)
    for _ in range(2 + odd):
        draw()
    kept = random_states("cpu")
    drawn = [draw() for _ in range(5)]
    random.seed(2)
    np.random.seed(2)
    draw()
    set_random_states(kept, "cpu")
    assert [draw() for _ in range(5)] == drawn
    set_random_states(before, "cpu")


def test_each_rank_begins_with_draws_of_its_own() -> None:
    """The first goes on from where building the model left it, as in a loop on one process; all are the seed's."""
    before = random_states("cpu")
    torch.manual_seed(1)
    built = torch.get_rng_state()

    def drawn(seed: int, rank: int, step: int = 0) -> list[float]:
        torch.set_rng_state(built)
        begin_draws(seed, rank, step, "cpu")
        return [draw() for draw in DRAWS.values()]

    found = [drawn(0, rank) for rank in range(3)]
    torch.set_rng_state(built)
    assert found[0][0] == float(torch.rand(()))
    for kinds in zip(*found, drawn(1, 1), drawn(0, 1, 5), strict=True):
        assert len({*kinds}) == 5
    assert drawn(0, 2) == found[2]
    set_random_states(before, "cpu")
