"""Steps to a held-out loss at the rate that needs fewest, and the law that they follow over minibatches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise, product, takewhile
from math import inf, log
from pathlib import Path
from statistics import median

import pytest
import torch

from partita.errors import TaskError
from partita.oracles.target import (
    LADDER,
    at,
    finer,
    least_loss,
    least_steps,
    loss_after,
    losses,
    middle,
    steps_to,
    tuned,
)
from partita.searches.steps_to_loss import MeasuredMinibatch, fitted, slope
from partita.task import Task, load_task
from tests.small import Line, Numbers, perceptron

PERCEPTRON = Path(__file__).parents[2] / "benchmarks" / "minibatch" / "tasks.py"


class Noisy(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Six numbers, each half as wide as the one before, and a sum of them with noise."""

    def __init__(self, size: int, seed: int) -> None:
        draw = torch.Generator().manual_seed(seed)
        self.x = torch.randn(size, 6, generator=draw) * 0.7 ** torch.arange(6)
        self.y = self.x.sum(1) + torch.randn(size, generator=draw)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.x[index], self.y[index]

    def collated(self, positions: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        return self.x[list(positions)], self.y[list(positions)]


def line(batch: int = 16, rate: float = 0.1) -> Task:
    """Least squares; its steps go downhill by half the gradient of the squared error."""
    return Task(
        name="line", model=Line, data=Noisy(4096, 1), batch_size=batch, validation=Noisy(256, 2),
        loss=lambda model, batch: ((model(batch[0]) - batch[1]) ** 2).mean() / 2,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=rate),
    )  # fmt: skip


def by_hand(batch: int, rate: float, seed: int) -> Callable[[int], float]:
    """Held-out loss after so many steps of a loop that is written out, in fp64."""
    data, held_out = Noisy(4096, 1), Noisy(256, 2)

    def loss(steps: int) -> float:
        row = torch.zeros(6, dtype=torch.float64)
        order = torch.randperm(4096, generator=torch.Generator().manual_seed(seed))
        for step in range(steps):
            mine = order[step * batch : (step + 1) * batch]
            x, y = data.x[mine].double(), data.y[mine].double()
            row -= rate * x.T @ (x @ row - y) / batch
        return float(((held_out.x.double() @ row - held_out.y) ** 2).mean() / 2)

    return loss


def test_steps_are_those_of_a_loop_written_out() -> None:
    loss = by_hand(16, 0.1, seed=3)
    seen = dict(losses(at(line(), 16, 0.1), 3, iter((1, 5, 40))))
    assert seen == pytest.approx({1: loss(1), 5: loss(5), 40: loss(40)}, rel=1e-5)
    target = (loss(20) + loss(21)) / 2
    first = next(step for step in range(1, 60) if loss(step) <= target)
    assert steps_to(at(line(), 16, 0.1), target, 3, inf) == first
    assert steps_to(at(line(), 16, 0.1), target, 3, first - 1) == inf
    assert loss_after(at(line(), 16, 0.1), 3, 40) == pytest.approx(loss(40), rel=1e-5)


def test_looks_are_near_each_other() -> None:
    looks = list(takewhile(lambda look: look < 10_000, finer()))
    assert looks[:100] == list(range(1, 101))
    assert all(after - before <= max(1, 0.02 * before) for before, after in pairwise(looks))
    assert len(looks) < 400


def test_a_rate_is_tuned_until_both_sides_are_worse() -> None:
    """A parabola over the logarithm of the rate, from below, above and on its least point; what was least so far is
    told, so that worse runs can be broken off."""
    told: list[float] = []

    def value(rate: float, best: float) -> float:
        told.append(best)
        return 10 + (log(rate / 0.37, LADDER)) ** 2

    for first in (0.01, 0.37, 3.0):
        told.clear()
        found = tuned(value, first)
        assert abs(log(found.rate / 0.37, LADDER)) <= 0.5
        rates = [rate for rate, _ in found.tried]
        assert rates[1] < found.rate < rates[-2]
        assert told == sorted(told, reverse=True)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_the_middle_is_the_median_and_no_run_is_made_that_cannot_move_it(count: int) -> None:
    for values in product((1.0, 2.0, inf), repeat=count):
        asked = iter(values)
        assert middle(asked, count) == median(values)
        left = len(list(asked))
        assert (left > 0) == (2 * values[:-1].count(inf) >= count)


def test_a_rate_that_is_the_last_one_or_none_is_said() -> None:
    with pytest.raises(TaskError, match=r"no rate from .* to .* leads there; lower the target"):
        tuned(lambda rate, best: inf, 0.1)
    with pytest.raises(TaskError, match="is the last one; start from another rate"):
        tuned(lambda rate, best: rate, 0.1)
    with pytest.raises(TaskError, match="has no held-out samples"):
        steps_to(perceptron(), 0.5, 0, 10)


def test_a_run_that_leaves_is_no_run() -> None:
    assert steps_to(line(rate=50.0), 0.5, 0, 1000) == inf
    assert loss_after(replace(line(rate=1e30), data=Numbers()), 0, 40) == inf


def test_a_convex_task_follows_the_law() -> None:
    """LB-06 in seconds: steps of least squares at the best rate each, 14 where there are fewest."""
    points, rate = list[MeasuredMinibatch](), 0.5
    for batch in (512, 128, 32, 8, 2):
        found = least_steps(line(), batch, 0.54, seeds=range(5), first=rate, most=10_000)
        points.insert(0, MeasuredMinibatch(batch, found.value, found.rate))
        rate = found.rate
    law = fitted(points)
    assert law.r2 > 0.95
    assert all(point.steps == pytest.approx(law.steps(point.batch), rel=0.15) for point in points)
    assert slope(*points[:2]) < -0.7
    assert slope(*points[-2:]) > -0.25


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_perceptron_has_three_regimes() -> None:
    """LB-06: real digits. Twice a minibatch of a ninth of the critical one or less halves the steps, twice one of six
    times it or more hardly saves any, and the law accounts for what lies between."""
    task, points, rate = load_task(f"{PERCEPTRON}:perceptron"), list[MeasuredMinibatch](), 0.7
    for batch in (512, 256, 64, 16, 4, 2, 1):
        found = least_steps(task, batch, 0.25, seeds=range(9), first=rate, most=20_000)
        points.insert(0, MeasuredMinibatch(batch, found.value, found.rate))
        rate = found.rate
    law = fitted(points)
    assert points[1].batch <= law.critical / 9
    assert 6 * law.critical <= points[-2].batch
    assert slope(*points[:2]) == pytest.approx(-1, abs=0.1)
    assert abs(slope(*points[-2:])) < 0.15
    assert law.r2 > 0.95


@pytest.mark.slow
def test_too_large_a_minibatch_learns_less_from_a_sample() -> None:
    """MX-01: the held-out loss after two epochs, at the best rate each, rises with the minibatch."""
    task, found, rate = load_task(f"{PERCEPTRON}:perceptron"), list[float](), 0.7
    for batch in (512, 128, 32, 8):
        best = least_loss(task, batch, 3200, seeds=range(3), first=rate)
        rate = best.rate
        found.append(best.value)
    assert found == sorted(found, reverse=True)
    assert found[0] > 5 * found[-1]
    assert found[-2] < 2 * found[-1]
