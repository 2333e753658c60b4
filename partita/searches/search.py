"""Search: plans ranked, and what is known of those that are not."""

from __future__ import annotations

from dataclasses import dataclass, field

from partita.plan.plan import Plan
from partita.searches.break_even import BreakEven
from partita.searches.candidate import Candidate
from partita.searches.minibatch_choice import MinibatchChoice
from partita.units import Seconds


@dataclass(frozen=True)
class Search:
    """Plans ranked by an objective.

    candidates           plans with their predictions, best first
    search_seconds       how long the search took
    lower_bound          what no plan has less of by the `objective`: seconds of a step (computing alone, perfectly
                         divided), bytes of the fullest rank, dollars of a step
    lower_bound_seconds  the same in seconds of a step, whatever the objective
    gap                  how far the first candidate may be above the bound: 0.1 is 10 %
    explanation          a line for each thing that it says
    refused              (plan, why it is no candidate)
    costs, because       where costs come from, and why from there
    pays                 where each codec would pay, if codecs are allowed
    space, fitting       how many points were compared, and how many of them fit (0: not counted)
    clocked              how many plans were simulated
    minibatches          what the minibatch of the first was chosen of; empty: it is the task's
    steps_to_loss        steps to a loss of an exact plan, where others are compared with it by that; 0: they are not
    """

    candidates: tuple[Candidate, ...]
    search_seconds: Seconds
    lower_bound_seconds: Seconds
    gap: float
    explanation: str
    refused: tuple[tuple[str, str], ...] = field(default=())
    costs: str = ""
    because: str = ""
    pays: tuple[BreakEven, ...] = ()
    space: int = 0
    fitting: int = 0
    clocked: int = 0
    minibatches: tuple[MinibatchChoice, ...] = ()
    objective: str = "time"
    lower_bound: float = 0.0
    steps_to_loss: float = 0.0

    def __repr__(self) -> str:
        first = f", first {self.candidates[0]!r}" if self.candidates else ""
        return f"<Search by {self.objective}, plans kept: {len(self.candidates)}{first}>"

    @property
    def best(self) -> Plan:
        """The plan of the first candidate."""
        return self.candidates[0].plan
