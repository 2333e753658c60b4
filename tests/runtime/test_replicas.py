"""Servers that are lost, each at any moment, while others have what they had."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import pytest
import torch

from partita.errors import RunHung
from partita.graph.graph import Graph
from partita.program.absence import chain_of, successor_of
from partita.program.instruction import Receive, Send
from partita.runs.assembly import initial, make_rank
from partita.runs.takeover import Message, copied, message_of, messages_of, take_over
from partita.runtime.beside import LaneRun
from partita.runtime.interleaving import advance
from partita.runtime.leg import Interval
from partita.runtime.rank import Rank
from partita.runtime.state import make_state
from partita.runtime.worker import lanes
from partita.runtime.workload import Workload
from partita.simulator.simulate import simulate
from partita.task import Task
from partita.transport.inprocess import InProcess, Rendezvous
from tests.captures import capture
from tests.oracles.promises import kept
from tests.priced import batches_of, priced, whole_cores
from tests.programs import program_by
from tests.small import cluster_of, layers, perceptron

ROUNDS, WORKERS = 5, 3


@dataclass(frozen=True)
class Loss:
    """`rank` is lost before turn `turn` of all lanes."""

    rank: int
    turn: int


def slowing() -> Task:
    """Each step is of another rate, which whoever takes over must know."""
    return replace(perceptron(), schedule=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5))


@cache
def captured() -> Graph:
    return capture(slowing(), precision="fp64")


class Losing:
    """A run in fp64 in which servers are lost; with `successors` others of their chains play their parts."""

    def __init__(
        self, text: str, size: int, losses: Sequence[Loss], *, order: int = 0, successors: bool = True
    ) -> None:
        self.graph, machines, self.left = captured(), cluster_of(size), list(losses)
        self.program = program_by(text, self.graph, machines)
        self.rendezvous, self.turn, self.lost, self.successors = Rendezvous(), 0, set[int](), successors
        self.values = initial(slowing(), 0, "fp64")[1]
        self.ranks = {r: self._rank(r) for r in range(size)}
        self.turns = advance([*self.ranks.values()], Interval(ROUNDS), order, inject=self._inject)

    def _rank(self, r: int) -> Rank:
        task, role = slowing(), self.program.role_of[r]
        state = make_state(self.graph, self.program, role, task, self.values, "cpu", r)
        transport = InProcess(r, self.rendezvous)
        work = Workload(task, self.graph, precision="fp64", keyed=True)
        return make_rank(work, self.program, r, state, transport)

    def _inject(self, runs: dict[tuple[int, str], LaneRun]) -> None:
        self.turn += 1
        for loss in [loss for loss in self.left if loss.turn <= self.turn]:
            self.left.remove(loss)
            self.lost.add(loss.rank)
            del self.ranks[loss.rank]
            for place in [place for place in runs if place[0] == loss.rank]:
                del runs[place]
            self._void(loss.rank)
        for lost in sorted(self.lost) if self.successors else ():
            successor, fresh = successor_of(self.program, self.ranks.keys(), lost), self._rank(lost)
            ahead = [r for r in chain_of(self.program, lost) if r < lost]
            if (
                successor >= 0
                and not self.lost & set(ahead)
                and copied(fresh, self.ranks[successor], self._met(successor))
            ):
                take_over(fresh, self._met(lost))
                self._ask_again(fresh)
                self.lost.discard(lost)
                self.ranks[lost] = fresh
                interval = Interval(ROUNDS, min(fresh.board.done.values()))
                runs |= {(lost, name): run for name, run in lanes(fresh, interval, lambda _: False).items()}

    def _void(self, lost: int) -> None:
        """What the lost rank brought to messages that are not over is not there any more; what others brought is."""
        for place, exchange in tuple(self.rendezvous.exchanges.items()):
            exchange.brought.pop(lost, None)
            if not exchange.brought:
                del self.rendezvous.exchanges[place]

    def _met(self, r: int) -> dict[Message, int]:
        messages = messages_of(r, self.program.role_of[r]).values()
        return {message: self.rendezvous.completed[message] for message in messages}

    def _ask_again(self, fresh: Rank) -> None:
        """Messages that the lost rank had, and that `fresh` needs: whoever sent one brings it once more. What is still
        to come and is needed no more goes nowhere."""
        for i in fresh.role.instructions:
            if not isinstance(i.act, Send | Receive):
                continue
            (key, (sender, to)), done = message_of(fresh.rank, i.act), fresh.board.done[i.name]
            had = self.rendezvous.completed[key, (sender, to)]
            self.rendezvous.completed[key, (sender, to)] = min(had, done)
            for round in range(done, had) if to == fresh.rank else ():
                tensor = self.ranks[sender].state.gradient[i.act.bucket][0]
                InProcess(sender, self.rendezvous).send(tensor, to, key, round)
            for round in range(had, done) if to == fresh.rank else ():
                nowhere = torch.empty_like(fresh.state.gradient[i.act.bucket][0])
                InProcess(to, self.rendezvous).receive(nowhere, sender, key, round)

    @property
    def weights(self) -> torch.Tensor:
        """Of each rank one row."""
        names = [bucket.name for bucket in self.program.trained]
        rows = [torch.cat([rank.state.parameter[name] for name in names]) for rank in self.ranks.values()
                if rank.role.keeps == "model"]  # fmt: skip
        return torch.stack(rows)


@pytest.mark.parametrize("plan", ["ps_replicated(bucket_bytes=400)", "ps_replicated(servers=2,bucket_bytes=200)",
                                  "ps_replicated(replicas=3,microbatches=2)"])  # fmt: skip
def test_replicated_servers_train_as_one_process_does(plan: str) -> None:
    """FT-02: exact, as with one server."""
    assert kept(plan, cluster_of(7), steps=4, order=1) == "exact"


@pytest.mark.parametrize("orders", [9, pytest.param(60, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("replicas", "servers"), [(2, 1), (3, 1), (2, 2)])
def test_no_answered_update_is_lost_and_none_is_applied_twice(replicas: int, servers: int, orders: int) -> None:
    """FT-02: of each chain r - 1 servers are lost at drawn moments, one after the other or at once; the weights are bit
    for bit those of a run without failure, and every server that is there has made each step once."""
    text, size = f"ps_replicated(servers={servers},replicas={replicas},bucket_bytes=400)", WORKERS + replicas * servers
    plain, draw = Losing(text, size, ()), random.Random(replicas)
    reached = set()
    for order in range(orders):
        gone = draw.sample(chain_of(plain.program, WORKERS), replicas - 1)
        losses = [Loss(rank, draw.randrange(1, plain.turns)) for rank in gone]
        if order % 3 == 0:
            losses = [Loss(loss.rank, losses[0].turn) for loss in losses]
        run = Losing(text, size, losses, order=order)
        assert not run.lost
        assert torch.equal(run.weights, plain.weights)
        made = [run.ranks[r].state.ledger.version for r in range(WORKERS, size)]
        assert all(version == ROUNDS for each in made for version in each.values())
        reached |= {loss.rank for loss in losses} if not run.left else set()
    assert reached == set(chain_of(plain.program, WORKERS))


def test_without_an_heir_the_run_stands_still() -> None:
    """The control: nobody takes the lost server's part."""
    with pytest.raises(RunHung):
        Losing("ps_replicated(bucket_bytes=400)", WORKERS + 2, [Loss(WORKERS, 40)], successors=False)


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_a_copy_costs_one_gradient_a_step(replicas: int) -> None:
    """FT-02: replication bytes a step are (r - 1) n, and a word for each bucket; they pass at full speed."""
    graph, size = layers(16), WORKERS + replicas
    machines = whole_cores(size, 1e6)
    text = f"ps_replicated(replicas={replicas})" if replicas > 1 else "ps_sync"
    program = program_by(text, graph, machines)
    sent = simulate(program, priced(graph, machines, batches_of(program))).wire_sent
    n = sum(bucket.size for bucket in program.trained)
    words = 8 * len(program.trained)
    assert sum(sent) == 2 * WORKERS * n + (replicas - 1) * (n + words)
