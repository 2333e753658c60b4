"""What a comparison learned of how many steps its plans take to the target loss."""

from __future__ import annotations

from partita.errors import OptionError
from partita.report.comparison import Comparison
from partita.searches.steps_of_plans import MeasuredPlan, StepsOfPlans


def check_target(wanted: bool, target: float | None) -> None:
    """Raises OptionError where steps to a loss are `wanted` and no loss is given."""
    if wanted and target is None:
        raise OptionError("--write-steps is given without a loss; add --target-loss LOSS, to which steps are counted")


def steps_of(found: Comparison) -> StepsOfPlans:
    """The steps that each plan which ran to a target loss took until its training loss, the mean over its repeats, had
    come down to it (`searches.steps_of_plans.reached`)."""
    ran = [row for row in found.rows if row.measured and row.loss and row.target_loss is not None]
    return StepsOfPlans(
        max((row.target_loss for row in ran if row.target_loss is not None), default=0.0),
        tuple(MeasuredPlan(row.plan, row.steps_to_target) for row in ran if row.steps_to_target),
        task=found.setting.task, batch=max((row.measured.batch for row in ran if row.measured), default=0),
        devices=found.cluster.size, within=max((row.loss[-1][0] + 1 for row in ran), default=0),
        never=tuple(row.plan for row in ran if not row.steps_to_target),
    )  # fmt: skip
