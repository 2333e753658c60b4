"""The legs of a run: which Program runs for how many rounds, and after which rounds its weights are evaluated and a
checkpoint is written.

leg 0  ddp, 4 rounds       |####|
leg 1  pipe_sgd, 6 rounds       |######|>        > gradients in flight are applied
every 3 steps                 ^   ^   ^ ^         at a checkpoint within a leg they stay in flight, and are saved
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from partita.cluster.cluster import Cluster
from partita.graph.graph import Graph
from partita.lowering.lower import LoweredPhase, lower, lower_phase
from partita.plan.plan import Plan
from partita.program.instruction import Instruction
from partita.program.program import Program


@dataclass(frozen=True, slots=True)
class Leg:
    """`rounds` rounds of a Program, from step `step` of the run on; `plan` is that of its phase.

    `whole` is False for a last period that is shorter than the plan's, and for the final round, which has no minibatch.
    """

    rounds: int
    program: Program
    plan: Plan
    step: int = 0
    whole: bool = True

    @property
    def end(self) -> int:
        """The step after its last one."""
        return self.step + self.rounds * self.program.steps


@dataclass(frozen=True, slots=True)
class Interval:
    """Rounds `start` to `stop` of a leg, run without a pause. With `drain`, further rounds apply what is in flight
    then; with `keep`, a checkpoint follows, and with `evaluate`, the held-out loss. The instructions in `ahead` have
    their turn of round `stop` as well."""

    stop: int
    start: int = 0
    drain: bool = True
    keep: bool = False
    evaluate: bool = False
    ahead: frozenset[str] = frozenset()

    def last(self, instruction: Instruction) -> int:
        """The number of rounds that an instruction runs; one with a lag goes on until what is in flight is applied."""
        return self.stop + (instruction.lag if self.drain else instruction.name in self.ahead)


def legs(graph: Graph, plan: Plan, cluster: Cluster, steps: int, since: int = 0) -> tuple[Leg, ...]:
    """The legs of steps `since` to `steps` of a run, phase by phase. Steps that do not fill a last period are a
    shorter one."""
    found: list[Leg] = []
    at = 0
    for phase in lower(graph, plan, cluster):
        end = min(at + phase.steps, steps) if phase.steps else steps
        found += _filled(graph, cluster, phase, max(at, since), end)
        if phase.end and end > at and end >= since:
            found.append(Leg(1, phase.end, phase.plan, end, whole=False))
        at = end
    return tuple(leg for leg in found if leg.rounds > 0)


def left(graph: Graph, plan: Plan, cluster: Cluster, steps: int, since: int, flying: int = 0) -> tuple[Leg, ...]:
    """The legs of steps `since` to `steps`. Where a leg ends there and `flying` gradients are still in flight, it comes
    first without rounds, to apply them before another Program begins; so does the last one, if no step is left."""
    found = legs(graph, plan, cluster, steps, since)
    more = any(leg.program.steps for leg in found)
    if more and not flying:
        return found
    before = [leg for leg in legs(graph, plan, cluster, steps) if leg.program.steps and (leg.end == since or not more)]
    return (*(Leg(0, leg.program, leg.plan, since) for leg in before[-1:]), *found)


def _filled(graph: Graph, cluster: Cluster, phase: LoweredPhase, start: int, end: int) -> list[Leg]:
    rounds, rest = divmod(max(end - start, 0), phase.program.steps)
    found = [Leg(rounds, phase.program, phase.plan, start)]
    if rest:
        shorter = lower_phase(graph, phase.plan, cluster, rest)
        found.append(Leg(1, shorter, phase.plan, found[0].end, whole=False))
    return found


def intervals(leg: Leg, flying: int = 0, every: int = 0, last: bool = True, evaluate: int = 0) -> Iterator[Interval]:
    """The intervals of a leg whose first `flying` rounds were run before: to its end, or from one checkpoint or
    evaluation to the next.

    A checkpoint follows the round that reaches a multiple of `every` steps, an evaluation one of `evaluate` steps. The
    `last` whole leg of a run is followed by a checkpoint in any case, before what is in flight is applied, so that a
    longer run can go on from it. Neither follows a shorter last period, which a longer run would not have.
    """
    start, stop = flying, flying + leg.rounds
    if not ((every or evaluate) and leg.whole and leg.rounds):
        yield Interval(stop, start)
        return
    for round in range(flying, stop - 1):
        keep, judge = _due(leg, round - flying, every), _due(leg, round - flying, evaluate)
        if keep or judge:
            yield Interval(round + 1, start, drain=False, keep=keep, evaluate=judge)
            start = round + 1
    keep, judge = _due(leg, leg.rounds - 1, every), _due(leg, leg.rounds - 1, evaluate)
    yield Interval(stop, start, drain=not last, keep=keep or (last and every > 0), evaluate=judge)
    if last:
        yield Interval(stop, stop)


def _due(leg: Leg, round: int, every: int) -> bool:
    before = leg.step + round * leg.program.steps
    return every > 0 and (before + leg.program.steps) // every > before // every
