"""Ranks that die at an instance of an instruction, and come back when the others are in some round, in one process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from partita.checkpoints.checkpoint import SavePolicy
from partita.checkpoints.holding import held
from partita.checkpoints.losses import begun_in
from partita.checkpoints.manifest import Moment, manifest_of
from partita.checkpoints.restore import open_checkpoint
from partita.checkpoints.saving import save_shards
from partita.lowering.lower import last_program
from partita.program.absence import answered, entered, expendable, met_by, shared
from partita.program.instruction import Receive
from partita.program.program import Program
from partita.program.space import Space
from partita.program.timeline import Span
from partita.recipes.catalogue import call
from partita.runs.assembly import carry_over, go_on, initial, make_rank
from partita.runtime.beside import LaneRun
from partita.runtime.interleaving import advance
from partita.runtime.leg import Interval, Leg, legs
from partita.runtime.membership import begin_without, finished_before, mark_back, mark_gone
from partita.runtime.rank import Rank
from partita.runtime.state import State
from partita.runtime.worker import lanes
from partita.runtime.workload import Workload
from partita.task import Task
from partita.transport.inprocess import InProcess, Rendezvous
from tests.captures import capture
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
    """A run in fp64 of the perceptron, under any optimizer, in which ranks die: `states` by rank, the `spans` of what
    was done, and what the servers' ledgers tell; the others are `told` of deaths. It goes on from the checkpoint
    `saved`, and leaves one at its end under `keep`."""

    def __init__(
        self, text: str, size: int, steps: int, deaths: Sequence[Death], *, task: Task, order: int = 0,
        slow: dict[int, float] | None = None, told: bool = True, keep: Path | None = None, saved: Path | None = None,
    ) -> None:  # fmt: skip
        self.task, self.machines, self.left = task, cluster_of(size), list(deaths)
        self.told = told
        self.graph = GRAPH
        self.work = Workload(task, GRAPH, precision="fp64", keyed=True)
        plan = self.plan = call(text, self.graph, self.machines)
        began = open_checkpoint(saved) if saved else None
        self.program: Program = last_program(self.graph, plan, self.machines)
        self.legs = legs(self.graph, plan, self.machines, steps, began.manifest.step if began else 0)
        ranks = range(self.program.size)
        self.spare = frozenset(r for r in ranks if all(expendable(leg.program, r) for leg in self.legs))
        self.values = initial(task, 0, "fp64")[1]
        self.away, self.dead = set[int](), list[Death]()
        self.states: dict[int, State] = {}
        self.entries: list[int] = []
        self.spans: list[Span] = []
        self.entering: dict[int, int] = {}
        for leg in self.legs:
            self.leg, self.rendezvous = leg, Rendezvous()
            self.ranks = {r: self._rank(leg, r) for r in range(size) if r not in self.away}
            for one in self.ranks.values() if began else ():
                go_on(one, began)
            began = None
            advance(
                [*self.ranks.values()], Interval(leg.rounds), order, slow, record=lambda _: True, inject=self._inject
            )
            self.spans += [span for one in self.ranks.values() for span in one.spans]
            if keep and leg.whole:
                self._keep(keep, leg)
        self.ledger = [m for r in sorted(self.states) for m in self.states[r].ledger.merges]

    def _keep(self, out: Path, leg: Leg) -> None:
        manifest = manifest_of(self.work, self.plan, leg.program, Moment(leg.end, 0))
        shards = [held(one, leg.rounds, 0) for one in self.ranks.values()]
        save_shards(shards, SavePolicy(str(out)), manifest, begun_in(str(out)), [])

    def _rank(self, leg: Leg, r: int) -> Rank:
        program = leg.program
        state = carry_over(self.work, program, r, self.values, self.states.get(r))
        rank = make_rank(self.work, program, r, state, InProcess(r, self.rendezvous), first_step=leg.step)
        rank.spare, rank.away, self.states[r] = self.spare, {*self.away}, rank.state
        begin_without(rank)
        return rank

    def _inject(self, runs: dict[tuple[int, str], LaneRun]) -> None:
        for death in tuple(self.left):
            if death.rank in self.ranks and self.ranks[death.rank].board.done.get(death.name, 0) > death.round:
                self.left.remove(death)
                self._die(death, runs)
        for death in tuple(self.dead):
            begun = max(map(self._begun, self._met(death.rank)))
            if 0 <= death.back <= begun < self.leg.rounds:
                self.dead.remove(death)
                self._return(death.rank, max(begun, 1), runs)
        for r, at in tuple(self.entering.items()):
            giver = self.ranks.get(self._giver(r))
            if (not giver or finished_before(giver, at)) and not any(place[0] == r for place in runs):
                del self.entering[r]
                self._adopt(self.ranks[r], giver, at)
                runs |= self._lanes(self.ranks[r], Interval(self.leg.rounds, at))

    def _begun(self, rank: Rank) -> int:
        return (rank.brake.begun - rank.first_step) // rank.program.steps if rank.program.steps else 2**62

    def _die(self, death: Death, runs: dict[tuple[int, str], LaneRun]) -> None:
        self.spans += self.ranks[death.rank].spans
        del self.ranks[death.rank], self.states[death.rank]
        self.away.add(death.rank)
        self.dead.append(death)
        self.rendezvous.leave(death.rank)
        for place in [place for place in runs if place[0] == death.rank]:
            del runs[place]
        for one in self._met(death.rank) if self.told else ():
            mark_gone(one, death.rank, one.gone.get(death.rank, 0))

    def _met(self, r: int) -> list[Rank]:
        met = {q for leg in self.legs for q in met_by(leg.program, r)}
        return [one for q, one in self.ranks.items() if q in met]

    def _return(self, r: int, at: int, runs: dict[tuple[int, str], LaneRun]) -> None:
        self.entries.append(at)
        self.away.discard(r)
        peers = self._met(r)
        rank = self.ranks[r] = self._rank(self.leg, r)
        rank.board.done, rank.gone = entered(rank.program, r, at, r), {r: 1}
        for one in peers:
            mark_back(one, r, at)
        if giver := self.ranks.get(self._giver(r)):
            giver.brake.hold()
            giver.brake.lift(giver.step(at, 0))
        self.entering[r] = at
        runs |= self._lanes(rank, Interval(at, at - 1, drain=False))

    def _lanes(self, rank: Rank, interval: Interval) -> dict[tuple[int, str], LaneRun]:
        return {(rank.rank, name): run for name, run in lanes(rank, interval, lambda _: False).items()}

    def _giver(self, r: int) -> int:
        workers = [one.rank for one in self._met(r) if one.role.keeps == "model"]
        return -1 if answered(self.program, r) else workers[0]

    def _adopt(self, rank: Rank, giver: Rank | None, at: int) -> None:
        """As Rejoin.adopt, without messages."""
        for space, bucket in shared(rank.program, rank.rank, giver.rank) if giver else ():
            rank.state.flat(space, bucket, 0).copy_(giver.state.flat(space, bucket, 0))
        if giver:
            giver.brake.resume()
        for i in rank.role.instructions if not giver else ():
            if isinstance(i.act, Receive) and i.act.space is Space.ANCHOR:
                rank.state.parameter[i.act.bucket].copy_(rank.state.kept[Space.ANCHOR, i.act.bucket])
