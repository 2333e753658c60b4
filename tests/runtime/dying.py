"""Ranks that die at an instance of an instruction, and come back when the others are in some round, in one process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from partita.lowering.lower import lower
from partita.program.absence import entered, expendable, met_by
from partita.program.program import Program
from partita.recipes.catalogue import call
from partita.runtime.inprocess import Hall, InProcess
from partita.runtime.leg import Leg, Reach, legs
from partita.runtime.rank import Rank
from partita.runtime.roll import begin_without, clock, comes, goes
from partita.runtime.run import carry_over, initial, make_rank
from partita.runtime.schedules import advance
from partita.runtime.state import State
from partita.runtime.worker import LaneRun, lanes
from partita.task import Task
from partita.tracing.capture import capture
from tests.small import cluster_of, perceptron

GRAPH = capture(perceptron(), precision="fp64")


@dataclass(frozen=True)
class Death:
    """`rank` dies once it has done `name` of `round`, and is back when another rank is in round `back` (-1: never)."""

    rank: int
    name: str
    round: int
    back: int = -1


class Dying:
    """A run in fp64 of the perceptron, under any optimizer, in which ranks die: `states` by rank, and what the servers'
    ledgers tell; the others are `told` of deaths."""

    def __init__(
        self, text: str, size: int, steps: int, deaths: Sequence[Death], *, task: Task, order: int = 0,
        slow: dict[int, float] | None = None, told: bool = True,
    ) -> None:  # fmt: skip
        self.task, self.machines, self.left = task, cluster_of(size), list(deaths)
        self.told = told
        self.graph = GRAPH
        plan = call(text, self.graph, self.machines)
        self.program: Program = lower(self.graph, plan, self.machines)[-1].program
        self.legs = legs(self.graph, plan, self.machines, steps)
        self.values = initial(task, 0, "fp64")[1]
        self.away, self.dead = set[int](), list[Death]()
        self.states: dict[int, State] = {}
        self.entries: list[int] = []
        for leg in self.legs:
            self.leg, self.hall = leg, Hall()
            self.ranks = {r: self._rank(leg, r) for r in range(size) if r not in self.away}
            advance([*self.ranks.values()], Reach(leg.rounds), order, slow, fate=self._fate)
        self.ledger = [m for r in sorted(self.states) for m in self.states[r].ledger.merges]

    def _rank(self, leg: Leg, r: int) -> Rank:
        program = leg.program
        state = carry_over(self.graph, program, r, self.task, self.values, self.states.get(r), "cpu")
        rank = make_rank(
            self.task, self.graph, program, r, state, InProcess(r, self.hall), seed=0, first_step=leg.step,
            precision="fp64", keyed=True,
        )  # fmt: skip
        spare = frozenset(r for r in range(program.size) if expendable(program, r))
        rank.spare, rank.away, self.states[r] = spare, self.away & set(spare), rank.state
        begin_without(rank)
        return rank

    def _fate(self, runs: dict[tuple[int, str], LaneRun]) -> None:
        for death in tuple(self.left):
            if death.rank in self.ranks and self.ranks[death.rank].board.done.get(death.name, 0) > death.round:
                self.left.remove(death)
                self._die(death, runs)
        for death in tuple(self.dead):
            peers = [self.ranks[q] for q in met_by(self.program, death.rank)]
            if 0 <= death.back <= max(map(clock, peers)) and all(one.going for one in peers):
                self.dead.remove(death)
                self._return(death.rank, peers, runs)

    def _die(self, death: Death, runs: dict[tuple[int, str], LaneRun]) -> None:
        del self.ranks[death.rank], self.states[death.rank]
        self.away.add(death.rank)
        self.dead.append(death)
        self.hall.leave(death.rank)
        for place in [place for place in runs if place[0] == death.rank]:
            del runs[place]
        for q in met_by(self.program, death.rank) if self.told else ():
            goes(self.ranks[q], death.rank, self.ranks[q].gone.get(death.rank, 0))

    def _return(self, r: int, peers: list[Rank], runs: dict[tuple[int, str], LaneRun]) -> None:
        at = min(max(map(clock, peers)), self.leg.rounds)
        self.entries.append(at)
        self.away.discard(r)
        rank = self.ranks[r] = self._rank(self.leg, r)
        rank.board.done = entered(rank.role, r, at)
        for one in peers:
            comes(one, r, at)
        reach = Reach(self.leg.rounds, at - 1)
        runs |= {(r, name): run for name, run in lanes(rank, reach, lambda _: False).items()}
