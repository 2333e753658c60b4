"""What becomes of settings of the optimizer that the task has changed since a checkpoint was written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from partita.checkpoints.checkpoint import SavePolicy
from partita.checkpoints.restore import Checkpoint, changes_since, open_checkpoint
from partita.checkpoints.settings import sentences
from partita.recipes.catalogue import call
from partita.runs.assembly import train_in_process
from partita.runtime.workload import Workload
from partita.task import Task
from tests.captures import capture
from tests.programs import program_by
from tests.small import cluster_of, perceptron

STEPS = 5
Schedule = Callable[[Any], Any]
FALLING: Schedule = partial(torch.optim.lr_scheduler.StepLR, step_size=2, gamma=0.5)


def task(schedule: Schedule | None = None, **settings: Any) -> Task:
    own = {"lr": 0.01, "momentum": 0.9, "weight_decay": 0.0} | settings
    return replace(perceptron(), optimizer=lambda p: torch.optim.SGD(p, **own), schedule=schedule)


def grouped(rate: float) -> Task:
    """Biases have no decay, and the rate of weights is `rate`."""

    def optimizer(parameters: Any) -> torch.optim.Optimizer:
        split: dict[bool, list[nn.Parameter]] = {True: [], False: []}
        for p in parameters:
            split[p.ndim > 1].append(p)
        return torch.optim.SGD([{"params": split[True], "lr": rate}, {"params": split[False]}], lr=0.02, momentum=0.9)

    return replace(perceptron(), optimizer=optimizer)


def saved_by(one: Task, plan: str, out: Path) -> Checkpoint:
    graph, machines = capture(one), cluster_of(2)
    train_in_process(
        Workload(one, graph), call(plan, graph, machines), machines, STEPS, keep=SavePolicy(str(out), 3, 9)
    )
    return open_checkpoint(out / "checkpoints/step-3")


def groups_after(one: Task, plan: str, saved: Checkpoint) -> list[dict[str, Any]]:
    """The settings of each group once a run has gone on from a checkpoint."""
    graph, machines = capture(one), cluster_of(2)
    states, _ = train_in_process(Workload(one, graph), call(plan, graph, machines), machines, STEPS, saved=saved)
    return [group for state in states.values() for own in state.optimizer.values() for group in own.param_groups]


def said(one: Task, plan: str, saved: Checkpoint) -> list[str]:
    graph, machines = capture(one), cluster_of(2)
    return sentences(changes_since(saved, one, graph, program_by(plan, graph, machines)))


@pytest.mark.parametrize("plan", ["ddp", "zero3(bucket_bytes=100)", "ps_sync(own=false,servers=1)"])
def test_a_setting_that_the_task_has_changed_is_taken(plan: str, tmp_path: Path) -> None:
    saved, now = saved_by(task(), plan, tmp_path), task(lr=0.5)
    assert {(group["lr"], group["momentum"]) for group in groups_after(now, plan, saved) if group["params"]} == {
        (0.5, 0.9)
    }
    assert said(now, plan, saved) == [
        "the task's optimizer has changed, and the run goes on with it as it is now: lr is 0.5 now; the checkpoint's "
        "run began with 0.01"
    ]
    assert said(task(), plan, saved) == []


def test_what_a_schedule_moves_stays_the_checkpoints(tmp_path: Path) -> None:
    """As torch's own state dicts have it; what the schedule leaves alone is the task's."""
    saved, now = saved_by(task(FALLING), "ddp", tmp_path), task(FALLING, lr=0.5, weight_decay=0.1)
    assert {(group["lr"], group["weight_decay"]) for group in groups_after(now, "ddp", saved)} == {(0.0025, 0.1)}
    assert said(now, "ddp", saved) == [
        "the task's optimizer has changed, and the run goes on with it as it is now: weight_decay is 0.1 now; the "
        "checkpoint's run began with 0.0",
        "the task's optimizer has changed, and the run goes on with the checkpoint's, since a schedule, or the "
        "optimizer itself, moves it: lr is 0.5 now; the checkpoint's run began with 0.01",
    ]


class Halving(torch.optim.SGD):
    """Halves its own rate after every step."""

    def step(self, closure: Any = None) -> Any:
        found = super().step(closure)
        for group in self.param_groups:
            group["lr"] /= 2
        return found


def test_what_an_optimizer_moves_by_itself_stays_the_checkpoints(tmp_path: Path) -> None:
    began, now = (replace(perceptron(), optimizer=partial(Halving, lr=rate, momentum=0.9)) for rate in (0.01, 0.5))
    saved = saved_by(began, "ddp", tmp_path)
    assert {group["lr"] for group in groups_after(now, "ddp", saved)} == {0.01 / 2**STEPS}
    (sentence,) = said(now, "ddp", saved)
    assert "the run goes on with the checkpoint's" in sentence


def test_each_group_has_its_own(tmp_path: Path) -> None:
    saved = saved_by(grouped(0.01), "ddp", tmp_path)
    assert sorted({group["lr"] for group in groups_after(grouped(0.3), "ddp", saved)}) == [0.02, 0.3]


def test_a_checkpoint_that_does_not_say_how_its_run_began_is_taken_as_it_is(tmp_path: Path) -> None:
    """One of an earlier version."""
    saved = saved_by(task(), "ddp", tmp_path)
    old = replace(saved, manifest=replace(saved.manifest, settings=()))
    assert {group["lr"] for group in groups_after(task(lr=0.5), "ddp", old)} == {0.01}
    assert said(task(lr=0.5), "ddp", old) == []
