"""One row of several repeats."""

from __future__ import annotations

from dataclasses import astuple, replace
from math import inf, nan

import pytest

from partita.lab.comparison_run import Foretold, PlanRun
from partita.program.timeline import Breakdown
from partita.report.comparison import Row, row_of
from partita.runs.result import RunResult
from tests.report.timelines import measured, predicted


def row(*repeats: tuple[float, float, float], target: float | None = 2.0) -> Row:
    """Of repeats with a step's seconds, when they reached the target, and a final loss."""
    results = tuple(
        RunResult(
            replace(measured(step=step), breakdown=Breakdown(forward=step / 4, idle=3 * step / 4)),
            ((0, reached / 2, 3.0), (1, reached, 1.5)) if reached < inf else ((0, 1.0, 3.0), (1, 2.0, 3.0)), final, "",
        )
        for step, reached, final in repeats
    )  # fmt: skip
    return row_of("ddp", PlanRun("exact", (Foretold(predicted(), {}),) * len(results), results), target)


@pytest.mark.parametrize("steps", [(4.0, 1.0), (1.0, 2.0, 9.0), (9.0, 1.0, 2.0), (5.0,)])
def test_what_a_step_is_spent_on_is_the_step(steps: tuple[float, ...]) -> None:
    """Whichever repeat the median is of, or between which."""
    found = row(*((step, 1.0, 0.0) for step in steps)).measured
    assert found is not None
    assert sum(astuple(found.breakdown)) == pytest.approx(found.step_seconds)
    assert found.breakdown.forward == pytest.approx(found.step_seconds / 4)


def test_a_target_is_reached_by_the_mean_loss_and_the_first_repeat_alone_has_a_held_out_one() -> None:
    found = row((1.0, 9.0, 0.5), (1.0, 2.0, nan), (1.0, 3.0, nan))
    assert (found.seconds_to_target, found.final_loss) == (3.0, 0.5)
    assert found.loss[0][1] == 4.5
    assert row((1.0, 2.0, 0.0), (1.0, inf, 0.0), (1.0, inf, 0.0)).seconds_to_target is None
    assert row((1.0, 2.0, 0.0), (1.0, inf, 0.0), (1.0, 3.0, 0.0)).seconds_to_target == 2.0  # (1.5 + 3 + 1.5) / 3
    assert row((1.0, 2.0, 0.0), target=None).seconds_to_target is None
