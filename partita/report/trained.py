"""The result of a training run."""

from __future__ import annotations

from dataclasses import dataclass

from partita.plan.plan import Plan
from partita.program.timeline import Timeline
from partita.report.setting import Setting
from partita.units import Seconds


@dataclass(frozen=True)
class Trained:
    """A finished run: `loss` is (step, seconds, loss) of every step, `notes` what was to be said on the way."""

    plan: Plan
    timeline: Timeline
    loss: tuple[tuple[int, Seconds, float], ...]
    final_loss: float
    steps: int
    weights_path: str
    notes: tuple[str, ...] = ()
    setting: Setting = Setting()

    def _repr_html_(self) -> str:
        """For notebooks: what the command line says."""
        from partita.report.answers import trained_answer
        from partita.report.notebook import answer_html

        return answer_html(trained_answer(self))
