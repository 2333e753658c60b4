"""A comparison of plans, and its verdict in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import exp, expm1, log
from statistics import fmean, median
from typing import Any, TypeAlias

from partita.cluster.cluster import Cluster
from partita.program.held_out import HeldOut
from partita.program.ledger import compared
from partita.program.timeline import Timeline
from partita.report.answer import Answer
from partita.report.environment import Environment
from partita.report.printed import Printed
from partita.report.setting import Setting
from partita.searches.explaining import largest_part
from partita.searches.steps_of_plans import reached
from partita.units import BytesPerSecond, Seconds, show_seconds

Curve: TypeAlias = tuple[tuple[int, Seconds, float], ...]


@dataclass(frozen=True)
class Row:
    """One plan: predicted before it ran, the median of its measured repeats, or the sentence that says why not.

    The spans of `measured` are of the repeat in the middle; `naive` maps the name of a simpler predictor to its step in
    seconds; `loss` holds (step, seconds, loss) of the first repeat, after which alone the held-out `final_loss` is
    computed, `losses` of every repeat; `semantics` is the class that `verify` holds the plan to, "" if not known;
    `over` is the step predicted at other bandwidths of the narrowest link, where these were asked for; `target_loss` is
    the loss that it was to reach, if any was asked for, which took `steps_to_target` and `seconds_to_target`;
    `evaluations` are (steps taken, held-out loss) on the way, of a training that made some.
    """

    plan: str
    predicted: Timeline | None = None
    measured: Timeline | None = None
    naive: dict[str, Seconds] = field(default_factory=dict)
    loss: Curve = ()
    seconds_to_target: float | None = None
    final_loss: float | None = None
    error: str = ""
    semantics: str = ""
    losses: tuple[Curve, ...] = ()
    over: tuple[tuple[BytesPerSecond, Seconds], ...] = ()
    target_loss: float | None = None
    steps_to_target: int | None = None
    evaluations: HeldOut = ()


@dataclass(frozen=True)
class Comparison(Printed):
    """Plans for one task on one cluster, in the order in which they were given. A record does not keep `setting`."""

    rows: tuple[Row, ...]
    task: str
    cluster: Cluster
    notes: tuple[str, ...] = ()
    environment: Environment | None = None
    setting: Setting = Setting()

    def __repr__(self) -> str:
        plans = ", ".join(row.plan for row in self.rows)
        return f"<Comparison of {plans} for {self.task} on {self.cluster.name}>"

    def _answer(self) -> Answer:
        from partita.report.answers import comparison_answer

        return comparison_answer(self)


def row_of(text: str, run: Any, target: float | None) -> Row:
    """The row of a plan from what the lab found of it, its `PlanRun`; `target` is the loss that it was to reach."""
    if run.error:
        return Row(text, error=run.error)
    timelines = sorted((result.timeline for result in run.results), key=lambda one: one.step_seconds)
    middle, seconds = timelines[len(timelines) // 2], [one.step_seconds for one in timelines]
    step, losses = median(seconds), tuple(result.loss for result in run.results)
    measured = replace(
        middle, step_seconds=step, n=len(seconds), low=seconds[0], high=seconds[-1],
        memory=tuple(watch.peak for watch in run.memory),
        memory_over_time=tuple(watch.laid_on(middle.spans) for watch in run.memory),
        breakdown=middle.breakdown.times(step / middle.step_seconds if middle.step_seconds else 1.0),
    )  # fmt: skip
    steps, at = (reached(losses, target) if target is not None else None) or (None, None)
    return Row(
        text, run.middle.timeline, measured, run.middle.naive, losses[0], at,
        run.results[0].final_loss, semantics=run.semantics, losses=losses,
        over=run.over, target_loss=target, steps_to_target=steps,
    )  # fmt: skip


def error_of(row: Row) -> float | None:
    """Predicted over measured step, less one; None where either is missing."""
    if row.predicted is None or row.measured is None or not row.measured.step_seconds:
        return None
    return row.predicted.step_seconds / row.measured.step_seconds - 1


def ln_ratio(row: Row) -> float | None:
    """ln(predicted / measured) of a step; None where either is missing."""
    error = error_of(row)
    return None if error is None or error <= -1 else log(1 + error)


def seconds_of(row: Row) -> Seconds | None:
    """A step's seconds: measured if it ran, else predicted, None if neither."""
    timeline = row.measured or row.predicted
    return timeline.step_seconds if timeline else None


def verdict(comparison: Comparison) -> str:
    """Which plan is fastest and by how much, what binds it, and where the prediction missed most."""
    timed = sorted((s, row.plan, row) for row in comparison.rows if (s := seconds_of(row)) is not None)
    if not timed:
        return "No plan could be timed."
    seconds, plan, best = timed[0]
    parts = [f"{plan} {'is fastest at' if len(timed) > 1 else 'takes'} {show_seconds(seconds)} a step"]
    if len(timed) > 1:
        parts[0] += f", {timed[1][0] / seconds:.2f} times as fast as {timed[1][1]}"
        parts[0] += f" and {timed[-1][0] / seconds:.2f} times as fast as {timed[-1][1]}" if len(timed) > 2 else ""
    best_timeline = best.measured or best.predicted
    if best_timeline is not None:
        parts += binding(best_timeline)
    parts += order(comparison.rows) + _missed(comparison.rows) + late(comparison.rows) + learned(comparison.rows)
    return ". ".join(parts) + "."


def late(rows: Sequence[Row]) -> list[str]:
    """How many versions late the updates of plans with a ledger are, as sentences without their full stops."""
    found = [
        (row.plan, compared(row.predicted.ledger, row.measured.ledger))
        for row in rows
        if row.predicted and row.measured
    ]
    return [
        f"Updates of {plan} are {each[1]:.2f} versions late on average, predicted {each[0]:.2f} (distributions "
        f"{each[2]:.2f} apart)"
        for plan, each in found if each
    ]  # fmt: skip


def binding(timeline: Timeline) -> list[str]:
    """What most of a step goes into, as one sentence without its full stop, or none."""
    name, share = largest_part(timeline)
    return [f"{name.capitalize()} binds it: {share:.0%} of the step"] if share else []


def errors_of(rows: Sequence[Row]) -> list[tuple[float, str]]:
    """(ln of predicted over measured, plan) of the rows that have both, the largest error first."""
    errors = [(ratio, row.plan) for row in rows if (ratio := ln_ratio(row)) is not None]
    return sorted(errors, key=lambda error: (abs(error[0]), *error), reverse=True)


def _missed(rows: Sequence[Row]) -> list[str]:
    errors = errors_of(rows)
    if not errors:
        return []
    worst, plan = errors[0]
    mean = expm1(fmean(abs(ratio) for ratio, _ in errors))  # of a step half as long as it was, too: 100 %
    most = f", most for {plan}, which took {exp(-worst):.2f} times as long as predicted" if len(errors) > 1 else ""
    return [f"The prediction missed by {mean:.1%} on average{most}"]


def order(rows: Sequence[Row]) -> list[str]:
    """Whether the predicted order of the plans is the measured one, as one such sentence, or none."""
    both = [(row.measured.step_seconds, row.predicted.step_seconds) for row in rows if row.measured and row.predicted]
    if len(both) < 2:
        return []
    right = [predicted for _, predicted in sorted(both)] == sorted(predicted for _, predicted in both)
    return ["The prediction ranked the plans " + ("as they ran" if right else "otherwise than they ran")]


def learned(rows: Sequence[Row]) -> list[str]:
    """Which plan reached the target loss first, how many steps each took, and which did not reach it, as sentences
    without their full stops."""
    there = [(row.seconds_to_target, row.plan) for row in rows if row.seconds_to_target is not None]
    found = []
    if there:
        seconds, plan = min(there)
        steps = ", ".join(f"{row.plan} {row.steps_to_target}" for row in rows if row.steps_to_target is not None)
        found.append(f"{plan} reached the target loss first, after {show_seconds(seconds)}")
        found += [f"Steps to it: {steps}"] if steps else []
    return found + [
        f"{row.plan} did not reach {row.target_loss:g} within {len(row.loss)} steps" for row in rows if unreached(row)
    ]


def unreached(row: Row) -> bool:
    """Whether a plan ran and did not reach the loss that it was to reach."""
    return row.target_loss is not None and bool(row.loss) and row.seconds_to_target is None
