"""What is not linear in gradients does as much a minibatch as in one process, however many contributions make it up:
beside plain loops that share nothing with the runtime or the replay."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from math import log
from typing import Any

import pytest
import torch

from partita.cluster.cluster import Cluster
from partita.errors import RunError, TaskError
from partita.oracles.check import difference, ledger_of
from partita.oracles.reference import fresh
from partita.recipes.catalogue import call
from partita.runs.assembly import train_in_process
from partita.runtime.feed import Feed
from partita.runtime.state import State
from partita.runtime.workload import Workload
from partita.task import Task
from tests.captures import capture
from tests.small import cluster_of, perceptron

SGD, ADAM = torch.optim.SGD, torch.optim.Adam
WORKERS, STEPS = 3, 6
LOOSE = ("ssp(staleness=0)", "ssp", "ps_async", "downpour(push=2)", "softsync(n=3)", "dynsgd(staleness=0)", "dc_asgd")
Optimizers = Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer]


def task_of(optimizer: Optimizers, batch: int = 12, **more: Any) -> Task:
    return replace(perceptron(), optimizer=optimizer, batch_size=batch, **more)


def states_of(task: Task, plan: str, steps: int = STEPS) -> dict[int, State]:
    shared = plan == "hogwild"
    machines = Cluster.load(f"local:{WORKERS}") if shared else cluster_of(WORKERS + (plan != "ddp"))
    graph = capture(task, precision="fp64")
    return train_in_process(Workload(task, graph, precision="fp64"), call(plan, graph, machines), machines, steps)[0]


def first_of(task: Task) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in fresh(task, seed=0, precision="fp64").model.named_parameters()}


@pytest.mark.parametrize("plan", ["ddp", *LOOSE, "hogwild"])
def test_weights_decay_once_a_minibatch(plan: str) -> None:
    """A loss of 0 leaves decay alone: w is multiplied by 1 - rate * decay as many times as there are minibatches."""
    nothing = task_of(partial(SGD, lr=0.1, weight_decay=0.1), loss=lambda model, batch: (model(batch[0]) * 0).mean())
    weights, before = states_of(nothing, plan)[0].leaves, first_of(nothing)
    for name, was in before.items():
        times = log(float((weights[name] / was).mean())) / log(1 - 0.1 * 0.1)
        assert times == pytest.approx(STEPS, rel=0.01)


@pytest.mark.parametrize("plan", ["ddp", *LOOSE, "hogwild"])
def test_adam_moves_by_its_rate_a_minibatch(plan: str) -> None:
    """Adam's first step is its rate, whatever the gradient's size; three workers' steps together are one."""
    task = task_of(partial(ADAM, lr=0.01))
    steps = 2 if "push" in plan else 1
    weights, before = states_of(task, plan, steps)[0].leaves, first_of(task)
    most = max(float((weights[name] - was).abs().max()) for name, was in before.items())
    assert 0.5 * steps * 0.01 <= most <= 1.001 * steps * 0.01


class Rateless(torch.optim.Optimizer):
    """Moves weights by 0.01, whatever the groups say."""

    def __init__(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Against the sign of each gradient."""
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    weight.sub_(0.01 * weight.grad.sign())


def test_an_optimizer_without_a_rate_is_told() -> None:
    states_of(task_of(Rateless), "ddp")
    with pytest.raises(TaskError, match="Rateless has no rate 'lr' in its groups"):
        states_of(task_of(Rateless), "ps_async")


@pytest.mark.parametrize("batch", [12, 13])
def test_lockstep_increments_with_decay_are_one_process(batch: int) -> None:
    """DP-14 at staleness 0, unequal parts too: momentum, decay and schedule of SGD, in a loop of plain PyTorch."""
    task = task_of(
        partial(SGD, lr=0.1, momentum=0.9, weight_decay=0.05, nesterov=True), batch,
        schedule=lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8),
    )  # fmt: skip
    model, feed = fresh(task, seed=0, precision="fp64").model, Feed(task, 0)
    optimizer = task.optimizer(model.parameters())
    assert task.schedule is not None
    schedule = task.schedule(optimizer)
    for step in range(STEPS):
        optimizer.zero_grad()
        samples = [task.data[i] for i in feed.positions(step, 0, batch)]
        x, y = (torch.stack([torch.as_tensor(one) for one in column]) for column in zip(*samples, strict=True))
        torch.nn.functional.cross_entropy(model(x.double()), y).backward()
        optimizer.step()
        schedule.step()
    found = states_of(task, "ssp(staleness=0)")[0].leaves
    assert difference(found, dict(model.named_parameters())) <= 1e-12


@pytest.mark.parametrize("order", range(4))
def test_a_step_is_the_mean_over_the_accepted_samples_of_unequal_parts(order: int) -> None:
    """DP-11, on seven samples, of which the workers have two, two and three."""
    task, machines = task_of(partial(SGD, lr=0.1), 7), cluster_of(4)
    graph = capture(task, precision="fp64")
    plan = call("backup_workers", graph, machines)
    states, _ = train_in_process(Workload(task, graph, precision="fp64"), plan, machines, 1, order=order)
    parts, one = [(0, 2), (2, 2), (4, 3)], fresh(task, seed=0, precision="fp64")
    taken = [parts[worker] for worker in sorted(merge.worker for merge in ledger_of(states))]
    assert len(taken) == 2
    gradients = one.gradients(0, taken, sum(count for _, count in taken))
    for p, gradient in zip(one.model.parameters(), gradients, strict=True):
        p.data -= 0.1 * gradient
    assert difference(states[0].leaves, dict(one.model.named_parameters())) <= 1e-12


@pytest.mark.parametrize("plan", ["ps_async", "downpour(push=3)", "downpour(push=1,fetch=3)", "softsync(n=1)"])
def test_a_schedule_steps_once_a_minibatch(plan: str) -> None:
    task = task_of(partial(SGD, lr=0.1), schedule=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 4))
    (schedule,) = states_of(task, plan, 12)[WORKERS].schedule.values()
    assert schedule.last_epoch == 12


def test_workers_that_keep_some_of_their_own_meet_at_the_end() -> None:
    task, machines = task_of(partial(SGD, lr=0.1)), cluster_of(WORKERS)
    graph = capture(task, precision="fp64")
    plan = call("diloco(period=2,keep=0.5)", graph, machines)
    states, _ = train_in_process(Workload(task, graph, precision="fp64"), plan, machines, 5, settle=True)
    assert all(difference(states[0].leaves, states[rank].leaves) == 0.0 for rank in range(WORKERS))


class Bottomless(torch.nn.Module):
    """The root of a weight that is zero has no finite gradient, although the loss is finite."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.dead = torch.nn.Linear(6, 3), torch.nn.Parameter(torch.zeros(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.where(x.sum() > 1e9, self.dead.sqrt().sum() * 0, 0.0) + self.layer(x)


@pytest.mark.parametrize(
    "plan",
    ["ddp", *(f"ddp(codec={codec})" for codec in ("topk", "threshold", "adacomp", "terngrad", "qsgd", "q8(where=end)")),
     "ssp(codec=topk)", "ps_async(codec=topk)", "zero2(codec=topk)", "ddp(codec=dgc)"],
)  # fmt: skip
def test_no_codec_hides_a_gradient_that_is_not_finite(plan: str) -> None:
    task = task_of(partial(SGD, lr=0.1, momentum=0.9), model=Bottomless)
    with pytest.raises(RunError, match="the gradient of dead is not finite"):
        states_of(task, plan)
