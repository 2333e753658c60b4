"""The legs of a run in which servers merge contributions, and which minibatches each of these is of.

downpour(push=3, fetch=2), 10 steps     leg 0   turn 0: 0 1 2   turn 1: 3 4 5
                                        leg 1   turn 2: 6 7 8   turn 3: 9
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from partita.oracles.reference import Share, shares_of
from partita.program.instruction import Apply
from partita.program.program import Program
from partita.runtime.leg import Leg


@dataclass(frozen=True)
class ServedLeg:
    """One leg of the run: the number of its first turn, the pushes of a worker in a round, the instructions by which
    they enter each bucket, by worker, and the samples of a round that each worker takes."""

    leg: Leg
    first: int
    pushes: int
    applies: dict[str, dict[int, list[Apply]]]
    shares: dict[int, list[Share]]

    @property
    def turns(self) -> int:
        """How many times each worker pushes in the leg."""
        return self.leg.rounds * self.pushes

    def minibatches(self, worker: int, turn: int) -> list[tuple[int, list[Share]]]:
        """(step, the worker's parts of its minibatch) for each step of a turn; the last turn of a shorter last round
        may have fewer."""
        program, round, push = self.leg.program, *divmod(turn - self.first, self.pushes)
        period, before = self.leg.plan.sync[0].frequency.period, self.leg.step + round * program.steps
        steps = range(push * period, min((push + 1) * period, program.steps))
        return [(before + step, [s for s in self.shares[worker] if s.step == step]) for step in steps]

    def act(self, bucket: str, worker: int, turn: int) -> Apply:
        """How a worker's turn enters a bucket."""
        return self.applies[bucket][worker][(turn - self.first) % self.pushes]


def served_legs(legs: Sequence[Leg]) -> list[ServedLeg]:
    """The legs of a run in which servers merge contributions, in order."""
    found: list[ServedLeg] = []
    for leg in legs:
        applies = applies_of(leg.program)
        pushes = max((len(acts) for one in applies.values() for acts in one.values()), default=0)
        if pushes:
            shares = {w: list(s) for w, s in groupby(sorted(shares_of(leg.program), key=_worker), key=_worker)}
            found.append(ServedLeg(leg, found[-1].first + found[-1].turns if found else 0, pushes, applies, shares))
    return found


def applies_of(program: Program) -> dict[str, dict[int, list[Apply]]]:
    """Bucket -> worker -> the Apply of each of its pushes in a round."""
    found: dict[str, dict[int, list[Apply]]] = {}
    for _, i in program.instructions():
        if isinstance(i.act, Apply):
            found.setdefault(i.act.bucket, {}).setdefault(i.act.source, []).append(i.act)
    return found


def _worker(share: Share) -> int:
    return share.rank
