"""The number of steps to a held-out loss, at the learning rate that needs fewest, for a minibatch size: K(B).

    K(B) = min over rates of the median over seeds of steps to the target       (Shallue et al. 2018)

Training is the plain loop that `verify` compares with, so the count is a property of the task and of no plan. Used by
`benchmarks/minibatch`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from math import inf, isfinite
from statistics import median
from typing import Any, Final

from partita.errors import TaskError
from partita.oracles.reference import fresh, replica
from partita.plan.plan import Update
from partita.runs.session import evaluate
from partita.task import Task

FINE: Final = 1.02  # by how much steps grow from one look at the held-out loss to the next
AWAY: Final = 20.0  # times the first loss: a run that has left
LADDER: Final = 2**0.5  # from rate to rate
RUNGS: Final = 16  # at most, either way from the first rate
WORSE: Final = 2  # rates in a row that are worse than the best, after which none beyond them is tried
SLOWER: Final = 1.5  # times the steps of the best rate so far, at which a run of another one is broken off


@dataclass(frozen=True, slots=True)
class Tuned:
    """The best `rate`, its `value`, and (rate, value) of all rates tried (inf: stopped early, or diverged)."""

    rate: float
    value: float
    tried: tuple[tuple[float, float], ...]


def at(task: Task, batch: int, rate: float) -> Task:
    """The task with minibatches of `batch` samples, its optimizer at `rate` in all its groups."""

    def optimizer(parameters: Iterable[Any]) -> Any:
        made = task.optimizer(parameters)
        for group in made.param_groups:
            group["lr"] = rate
        return made

    return replace(task, batch_size=batch, optimizer=optimizer)


def losses(task: Task, seed: int, looks: Iterator[int]) -> Iterator[tuple[int, float]]:
    """(steps taken, held-out loss) of a plain training, at each of the rising numbers of steps in `looks`; it ends
    if the loss diverges. Raises TaskError for a task without held-out samples."""
    if task.validation is None:
        raise TaskError(f"{task.name!r} has no held-out samples; give Task.validation some, to know when it has learnt")
    held_out, size = replace(task, batch_size=min(256, len(task.data))), len(task.validation)
    one = replica(fresh(task, seed=seed, precision=task.precision), Update())
    first, done = evaluate(held_out, one.own.model, task.validation, size, "cpu"), 0
    for look in looks:
        for step in range(done, look):
            one.apply(one.own.gradients(step, [(0, task.batch_size)], task.batch_size))
        done, loss = look, evaluate(held_out, one.own.model, task.validation, size, "cpu")
        if not isfinite(loss) or loss > AWAY * first:
            return
        yield look, loss


def steps_to(task: Task, target: float, seed: int, most: float) -> float:
    """Steps until the held-out loss is first at or below `target`; inf if it is not within `most` steps."""
    looks = takewhile(lambda look: look <= most, finer())
    return next((float(done) for done, loss in losses(task, seed, looks) if loss <= target), inf)


def loss_after(task: Task, seed: int, steps: int) -> float:
    """The held-out loss after `steps` steps; inf if training diverged."""
    return next((loss for _, loss in losses(task, seed, iter((steps,)))), inf)


def finer() -> Iterator[int]:
    """1, 2, 3, ... 99, 100, 102, 104, ...: each the next, or 2 % more."""
    look = 0
    while True:
        look = max(look + 1, int(look * FINE))
        yield look


def least_steps(task: Task, batch: int, target: float, *, seeds: Sequence[int], first: float, most: int) -> Tuned:
    """K(B): the fewest steps to `target` over learning rates; `first` is tried first."""

    def steps(rate: float, best: float) -> float:
        limit = min(float(most), SLOWER * best)
        return middle((steps_to(at(task, batch, rate), target, seed, limit) for seed in seeds), len(seeds))

    return tuned(steps, first)


def least_loss(task: Task, batch: int, samples: int, *, seeds: Sequence[int], first: float) -> Tuned:
    """E(B): the least held-out loss over learning rates, after `samples` samples."""

    def loss(rate: float, best: float) -> float:
        steps = max(samples // batch, 1)
        return middle((loss_after(at(task, batch, rate), seed, steps) for seed in seeds), len(seeds))

    return tuned(loss, first)


def middle(values: Iterator[float], count: int) -> float:
    """The median of `count` values. No more of them are asked for once half of them are inf, as then it is."""
    found: list[float] = []
    while len(found) < count and 2 * found.count(inf) < count:
        found.append(next(values))
    return inf if 2 * found.count(inf) >= count else median(found)


def tuned(value: Callable[[float, float], float], first: float) -> Tuned:
    """The least `value(rate, least so far)` over a geometric ladder of rates that contains `first`. The search goes
    down, then up, until two rates in a row are worse.

    Raises TaskError if no rate has a finite value.
    """
    tried = {0: value(first, inf)}
    for way in (-1, 1):
        rung, worse = way, 0
        while worse < WORSE and abs(rung) <= RUNGS:
            tried[rung] = value(first * LADDER**rung, min(tried.values()))
            worse = 0 if tried[rung] <= min(tried.values()) else worse + 1
            rung += way
    best = min(tried, key=lambda rung: (tried[rung], rung))
    low, high = (first * LADDER**edge for edge in (min(tried), max(tried)))
    if tried[best] == inf:
        raise TaskError(f"no rate from {low:.3g} to {high:.3g} leads there; lower the target, or allow more steps")
    if best in (min(tried), max(tried)):
        raise TaskError(f"the best of the rates from {low:.3g} to {high:.3g} is the last one; start from another rate")
    rates = tuple((first * LADDER**rung, tried[rung]) for rung in sorted(tried))
    return Tuned(first * LADDER**best, tried[best], rates)
