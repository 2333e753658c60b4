"""The result of a training run."""

from __future__ import annotations

from dataclasses import dataclass

from partita.plan.plan import Plan
from partita.program.held_out import HeldOut
from partita.program.timeline import Timeline
from partita.report.answer import Answer
from partita.report.printed import Printed
from partita.report.setting import Setting
from partita.units import Seconds


@dataclass(frozen=True)
class Trained(Printed):
    """A finished run: `loss` is (step, seconds, loss) of every step, `notes` what was to be said on the way;
    `final_loss` is the mean over the samples that `judged` names; `evaluations` are (steps taken, that mean) on the
    way, where they were asked for, and `best_path` is the file of the weights with the least."""

    plan: Plan
    timeline: Timeline
    loss: tuple[tuple[int, Seconds, float], ...]
    final_loss: float
    steps: int
    weights_path: str
    notes: tuple[str, ...] = ()
    setting: Setting = Setting()
    judged: str = ""
    evaluations: HeldOut = ()
    best_path: str = ""

    def __repr__(self) -> str:
        return f"<Trained by {self.plan.name}: {self.steps} steps, final loss {self.final_loss:.6g}>"

    def _answer(self) -> Answer:
        from partita.report.answers import trained_answer

        return trained_answer(self)
