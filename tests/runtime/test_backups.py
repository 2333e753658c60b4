"""Backup workers with several buckets, under scripted delays: no gradient of mixed versions enters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch

from partita.lowering.lower import last_program
from partita.oracles.check import TOLERANCE, difference, ledger_of
from partita.oracles.reference import fresh
from partita.oracles.replay import replayed
from partita.recipes.catalogue import call
from partita.runs.assembly import initial, make_rank
from partita.runtime.interleaving import advance
from partita.runtime.leg import Interval, legs
from partita.runtime.rank import Rank
from partita.runtime.state import make_state
from partita.runtime.workload import Workload
from partita.transport.inprocess import InProcess, Rendezvous
from partita.transport.transport import Pending
from tests.captures import capture
from tests.small import cluster_of, perceptron

ROUNDS, SERVER, LATE = 5, 3, 2
Place = tuple[str, int, int]


@dataclass(frozen=True)
class Gate:
    """A message that is there, but is not noted before `opens`."""

    pending: Pending
    opens: Callable[[], bool]

    def ready(self) -> bool:
        return self.pending.ready() and self.opens()

    def block(self, timeout: float) -> bool:
        return self.ready()


@dataclass(frozen=True)
class Delayed(InProcess):
    """Messages (key, peer, round) that this rank notes late."""

    gates: dict[Place, Callable[[], bool]] = field(default_factory=dict)

    def send(self, tensor: torch.Tensor, to: int, key: str, round: int) -> Pending:
        return self._held(super().send(tensor, to, key, round), (key, to, round))

    def receive(self, tensor: torch.Tensor, source: int, key: str, round: int) -> Pending:
        return self._held(super().receive(tensor, source, key, round), (key, source, round))

    def _held(self, pending: Pending, place: Place) -> Pending:
        return Gate(pending, self.gates[place]) if place in self.gates else pending


@pytest.mark.parametrize(("first", "other"), [(0, 1), (1, 2)])
def test_a_worker_that_reads_one_bucket_late_adds_to_none(first: int, other: int) -> None:
    """DP-11: the server notes late that an answer to worker 2 has left; the others make the next version of that bucket
    meanwhile, and are slow with their gradients of the other one, where worker 2's would come in time."""
    task, machines = perceptron(), cluster_of(SERVER + 1)
    graph = capture(task, precision="fp64")
    plan = call("backup_workers(bucket_bytes=400)", graph, machines)
    program, rendezvous, values = last_program(graph, plan, machines), Rendezvous(), initial(task, 0, "fp64")[1]
    work = Workload(task, graph, precision="fp64", keyed=True)
    names, ranks, gates = [b.name for b in program.trained], list[Rank](), dict[Place, Callable[[], bool]]()
    for r in range(program.size):
        state = make_state(graph, program, program.role_of[r], task, values, "cpu", r)
        transport = Delayed(r, rendezvous, gates if r == SERVER else {})
        ranks.append(make_rank(work, program, r, state, transport))
    done = ranks[SERVER].board.done
    gates[f"{names[first]}.down", LATE, 0] = lambda: done.get(f"E{first}", 0) > 2
    gates[f"{names[other]}.up", 1, 2] = lambda: done.get(f"U{other}.{LATE}", 0) > 2
    advance(ranks, Interval(ROUNDS), 0)
    ledger = ledger_of({rank.rank: rank.state for rank in ranks})
    assert all(merge.read == merge.applied == merge.turn for merge in ledger)
    serial = replayed(fresh(task, seed=0, precision="fp64"), legs(graph, plan, machines, ROUNDS)[:1], ledger)
    assert difference(ranks[SERVER].state.leaves, serial) <= TOLERANCE
