"""Messages of a lane that goes in order are asked for as soon as they may come, and no sooner."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch

from partita import api
from partita.graph.batch import substitute
from partita.graph.graph import TANGENT, Graph
from partita.lowering.readers import parameter_readers
from partita.oracles.reference import fresh
from partita.program.instruction import Compute, Instruction, Receive
from partita.program.space import Space
from partita.runs.assembly import carry_over, initial, make_rank
from partita.runtime import ahead
from partita.runtime.ahead import Ahead
from partita.runtime.draws import DRAWS
from partita.runtime.interleaving import advance
from partita.runtime.leg import Interval
from partita.runtime.rank import Rank
from partita.runtime.segment import compile_segment, key, last_reads
from partita.runtime.state import constant_of
from partita.runtime.waits import arrived
from partita.runtime.workload import Workload
from partita.tracing.capture import capture
from partita.tracing.draws import Draws
from partita.transport.inprocess import InProcess, Rendezvous
from partita.transport.transport import Pending
from tests.programs import program_by
from tests.small import cluster_of, perceptron


@dataclass(frozen=True)
class Asking(InProcess):
    """Counts what is asked for while the Receive before it in its lane is not done, and what is asked for too soon."""

    me: list[Rank] = field(default_factory=list)
    ahead: list[str] = field(default_factory=list)
    early: list[str] = field(default_factory=list)

    def receive(self, tensor: torch.Tensor, source: int, key: str, round: int) -> Pending:
        (rank,) = self.me
        one = next(i for i in rank.role.instructions if isinstance(i.act, Receive) and i.act.key == key)
        lane = [i.name for i in rank.role.on(one.lane)]
        place = lane.index(one.name)
        if place and rank.board.done.get(lane[place - 1], 0) <= round:
            self.ahead.append(one.name)
        if not arrived(rank, one, round):
            self.early.append(one.name)
        return super().receive(tensor, source, key, round)


@pytest.fixture(scope="module")
def graph() -> Graph:
    return capture(perceptron())


@pytest.mark.parametrize("plan", ["ps_sync(bucket_bytes=100)", "ps_sync(servers=2,own=false,bucket_bytes=100)"])
@pytest.mark.parametrize("order", range(4))
def test_what_may_come_is_asked_for(graph: Graph, plan: str, order: int) -> None:
    task, machines = perceptron(), cluster_of(3)
    program = program_by(plan, graph, machines)
    work, rendezvous, start = Workload(task, graph), Rendezvous(), initial(task, 0)[1]
    states = [carry_over(work, program, r, start, None) for r in range(program.size)]
    ways = [Asking(r, rendezvous) for r in range(program.size)]
    ranks = [make_rank(work, program, r, states[r], ways[r]) for r in range(program.size)]
    for way, rank in zip(ways, ranks, strict=True):
        way.me.append(rank)
    advance(ranks, Interval(3), order, None)
    assert any(way.ahead for way in ways)
    assert not any(way.early for way in ways)


def test_each_of_many_is_looked_at_once(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lane of n Receives went through all behind each: n x n looks in a round."""
    task, machines = perceptron(), cluster_of(3)
    program = program_by("ps_sync(bucket_bytes=4)", graph, machines)
    work = Workload(task, graph)
    state = carry_over(work, program, 0, initial(task, 0)[1], None)
    rank = make_rank(work, program, 0, state, InProcess(0, Rendezvous()))
    pulls = [i for i in rank.role.instructions if isinstance(i.act, Receive)]
    rank.board.done = dict.fromkeys((i.name for i in rank.role.instructions if i not in pulls), 1)
    asked = list[str]()

    def counted(rank: Rank, behind: Instruction, round: int) -> bool:
        asked.append(behind.name)
        return arrived(rank, behind, round)

    monkeypatch.setattr(ahead, "arrived", counted)
    lane = Ahead(rank, pulls, Interval(1))
    for pull in pulls:
        assert lane.start(rank, pull, 0) is not None
    assert len(pulls) > 10
    assert asked == [pull.name for pull in pulls[1:]]


def test_weights_come_in_while_backward_goes_on(graph: Graph) -> None:
    """The last layer's are read first, and overwritten while backward is busy with the others."""
    machines = cluster_of(3)
    program = program_by("ps_sync(bucket_bytes=100)", graph, machines)
    worker = next(role for role in program.roles if role.keeps == "model")
    passes = [i.name for i in worker.instructions if isinstance(i.act, Compute)]
    pulls = [i for i in worker.instructions if isinstance(i.act, Receive) and i.act.space is Space.PARAMETER]
    waits = [passes.index(after.name) for pull in pulls for after in pull.after]
    assert len(waits) == len(program.buckets)
    assert waits[0] < waits[-1] == len(passes) - 1


@pytest.mark.parametrize("name", ["digits-cnn", "bytes-gpt", "lstm"])
def test_readers_of_weights_are_those_that_read_their_memory(name: str) -> None:
    """By the addresses of what each operator reads as a step goes on."""
    graph, task = substitute(api.graph_of(name), 2), api.load(name)
    reference = fresh(task, seed=0, precision="fp32")
    named = {p: value.detach() for p, value in reference.model.named_parameters()}
    owner = {value.untyped_storage().data_ptr(): p for p, value in named.items()}
    leaves = named | dict(reference.model.named_buffers())
    leaves |= {c.name: constant_of(c, "cpu") for c in graph.constants}
    environment = {f"input.{i}": leaf for i, leaf in enumerate(reference.feed.leaves([0, 1], "cpu"))}
    environment |= {TANGENT: torch.tensor(1.0), DRAWS: Draws(0, 0, (0, 1))}
    found: dict[str, list[int]] = {p: [] for p in named}
    last = dict.fromkeys(last_reads(graph), len(graph.operators) + 1)
    for place, operator in enumerate(graph.operators):
        values = [environment.get(key(ref), leaves.get(ref.name)) for ref in operator.reads()]
        for storage in {v.untyped_storage().data_ptr() for v in values if isinstance(v, torch.Tensor)} & owner.keys():
            found[owner[storage]].append(place)
        with torch.no_grad():
            compile_segment(graph, place, place + 1, "cpu", last)(environment, leaves)
    assert {p: tuple(places) for p, places in found.items()} == parameter_readers(graph)
