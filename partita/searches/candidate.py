"""A plan with its prediction, as searches rank it."""

from __future__ import annotations

from dataclasses import dataclass

from partita.cluster.cluster import Cluster
from partita.plan.memory import Recompute
from partita.plan.plan import Plan
from partita.program.program import Program
from partita.program.timeline import Timeline
from partita.units import show_seconds


@dataclass(frozen=True)
class Candidate:
    """A plan with its prediction, and how many `instructions` all ranks carry out in a step; `gap` is how far what is
    to be small is above its bound, `explanation` what binds it and how it stands to the best. To a loss it takes
    `needs` times the steps of an exact plan: 1 for these, as measured for others."""

    plan: Plan
    timeline: Timeline
    semantics: str
    fits: bool
    gap: float = 0.0
    explanation: str = ""
    instructions: float = 0.0
    needs: float = 1.0

    def __repr__(self) -> str:
        fits = "fits" if self.fits else "does not fit"
        return f"<{self.plan.name}: {show_seconds(self.timeline.step_seconds)} a step, {fits}, {self.semantics}>"


def candidate_of(plan: Plan, program: Program, timeline: Timeline, cluster: Cluster, needs: float = 1.0) -> Candidate:
    """The candidate of a plan whose last program is predicted to take this timeline."""
    length = program.length / max(program.steps, 1)
    return Candidate(plan, timeline, program.semantics, fits(timeline, cluster), instructions=length, needs=needs)


def fits(timeline: Timeline, cluster: Cluster) -> bool:
    """Whether the fullest moment of every rank fits its device."""
    return all(d.memory == 0 or used <= d.memory for used, d in zip(timeline.memory, cluster.devices, strict=False))


def recipe_of(plan: str) -> str:
    """The recipe that made a plan of this name: "ddp" of "ddp(bucket_bytes=1048576)"."""
    return plan.split("(")[0]


def plainness(candidate: Candidate) -> tuple[bool, bool, bool, float, int, bool]:
    """A key by which the plainest of plans that do equally well comes first: those that are exact, that compute nothing
    twice, whose recipe has its default settings; then those of fewer instructions, of fewer bytes on the fullest rank,
    and whose ranks agree on nothing."""
    plan = candidate.plan
    again, settled = plan.memory.recompute is not Recompute.NONE, plan.name != recipe_of(plan.name)
    kept = max(candidate.timeline.memory, default=0)
    inexact = candidate.semantics != "exact"
    return inexact, again, settled, candidate.instructions, kept, bool(plan.sync)
