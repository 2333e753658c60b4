"""What the thread that computes does for other lanes: it sends what it made, and waits for what it needs."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
import torch

from partita.errors import PartitaError
from partita.graph.graph import Graph
from partita.lowering.lower import last_program, lower
from partita.program.instruction import Receive, Send
from partita.program.program import Program
from partita.program.space import Kind, Space
from partita.recipes.catalogue import RECIPES, call
from partita.runs.assembly import carry_over, initial, make_rank, train_in_process
from partita.runtime.beside import LaneRun, beside, led
from partita.runtime.interleaving import advance
from partita.runtime.leg import Interval
from partita.runtime.rank import Rank
from partita.runtime.values import MessageGroup
from partita.runtime.worker import drive
from partita.runtime.workload import Workload
from partita.task import Task
from partita.transport.inprocess import InProcess, Rendezvous
from partita.transport.transport import Pending
from tests.captures import capture
from tests.programs import program_by
from tests.small import cluster_of

STAGED = ("gpipe(microbatches=4)", "one_f_one_b(microbatches=4)", "zero_bubble(microbatches=4)")
ROUNDS = 5


@dataclass
class Post:
    """Letters by whence and where they go; `threads`: (what, rank) -> the names of those that sent or waited."""

    letters: dict[tuple[int, int, str, int], torch.Tensor] = field(default_factory=dict)
    changed: threading.Condition = field(default_factory=threading.Condition)
    threads: dict[tuple[str, int], set[str]] = field(default_factory=dict)

    def by(self, what: str, rank: int) -> None:
        self.threads.setdefault((what, rank), set()).add(threading.current_thread().name)


@dataclass
class Letter:
    """A message that, like gloo's, does not say whether it has come."""

    post: Post
    rank: int
    place: tuple[int, int, str, int]
    into: torch.Tensor

    def ready(self) -> bool:
        raise AssertionError("nobody may ask a message whether it has come")

    def block(self, timeout: float) -> bool:
        self.post.by("waits", self.rank)
        with self.post.changed:
            came = self.post.changed.wait_for(lambda: self.place in self.post.letters, timeout)
            self.into.copy_(self.post.letters.pop(self.place))
        return came


class Sent:
    """A message that is on its way."""

    def ready(self) -> bool:
        raise AssertionError("nobody may ask a message whether it has gone")

    def block(self, timeout: float) -> bool:
        return True


@dataclass(frozen=True)
class Posting:
    """The Transport of a rank whose threads are its own."""

    rank: int
    post: Post

    def collective(
        self, kind: Kind, tensor: torch.Tensor, group: tuple[int, ...], lane: str, key: str, round: int,
        edges: tuple[int, ...] = (),
    ) -> Pending:  # fmt: skip
        raise AssertionError("stages without replicas have no collectives")

    def send(self, tensor: torch.Tensor, to: int, key: str, round: int) -> Pending:
        self.post.by("sends", self.rank)
        with self.post.changed:
            self.post.letters[self.rank, to, key, round] = tensor.clone()
            self.post.changed.notify_all()
        return Sent()

    def receive(self, tensor: torch.Tensor, source: int, key: str, round: int) -> Pending:
        return Letter(self.post, self.rank, (source, self.rank, key, round), tensor)


@pytest.fixture(scope="module")
def graph(task: Task) -> Graph:
    return capture(task)


def ranks_of(task: Task, graph: Graph, program: Program, post: Post) -> Iterator[Rank]:
    work, values = Workload(task, graph), initial(task, 0)[1]
    for r in range(program.size):
        state = carry_over(work, program, r, values, None)
        yield make_rank(work, program, r, state, Posting(r, post))


def driven(ranks: list[Rank], rounds: int) -> None:
    """Each rank led by a thread of its own."""
    threads = [
        threading.Thread(target=drive, args=(rank, Interval(rounds), lambda _: True, 30.0), name=f"leads {rank.rank}")
        for rank in ranks
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)


@pytest.mark.parametrize("plan", [*STAGED, "ps_sync(bucket_bytes=200)"])
def test_messages_wake_nobody_on_their_way(task: Task, graph: Graph, plan: str) -> None:
    """Sent by the thread that made them, values waited for by the one that needs them; with the bits of one thread."""
    machines, post = cluster_of(3 if "ps" in plan else 2), Post()
    made = call(plan, graph, machines)
    ranks = list(ranks_of(task, graph, last_program(graph, made, machines), post))
    driven(ranks, ROUNDS)
    assert not post.letters
    for rank in ranks:
        assert post.threads["sends", rank.rank] == {f"leads {rank.rank}"}
        if plan in STAGED:
            assert post.threads["waits", rank.rank] == {f"leads {rank.rank}"}
    states, _ = train_in_process(Workload(task, graph), made, machines, ROUNDS)
    for rank, state in zip(ranks, states.values(), strict=True):
        assert rank.board.failure is None
        assert not rank.early
        for name, leaf in state.leaves.items():
            assert torch.equal(rank.state.leaves[name], leaf)


@pytest.mark.parametrize("plan", STAGED)
def test_spans_of_messages_begin_when_they_are_sent(task: Task, graph: Graph, plan: str) -> None:
    machines, post = cluster_of(2), Post()
    ranks = list(ranks_of(task, graph, program_by(plan, graph, machines), post))
    driven(ranks, 2)
    sends = {(s.name[1:], s.round): s.start for rank in ranks for s in rank.spans if s.kind == "Send"}
    comes = {(s.name[1:], s.round): s.end for rank in ranks for s in rank.spans if s.kind == "Receive"}
    assert sends.keys() == comes.keys() != set()
    assert all(sends[place] < comes[place] for place in sends)


def test_a_rank_is_freed_with_its_last_name(task: Task, graph: Graph) -> None:
    """Not when garbage is collected, which may be in the middle of the next run."""
    machines = cluster_of(2)
    program = program_by("one_f_one_b(microbatches=4)", graph, machines)
    work, rendezvous, values = Workload(task, graph), Rendezvous(), initial(task, 0)[1]
    ranks = [
        make_rank(work, program, r, carry_over(work, program, r, values, None), InProcess(r, rendezvous))
        for r in range(2)
    ]
    gc.collect()
    gc.disable()
    try:
        advance(ranks, Interval(2), 0, None)
        last = weakref.ref(ranks[0])
        ranks.clear()
        assert last() is None
    finally:
        gc.enable()


def coming(*waits: Pending) -> LaneRun:
    yield from waits


def test_after_a_failure_no_message_is_waited_for(task: Task, graph: Graph) -> None:
    """Nobody may send it any more."""
    machines = cluster_of(2)
    program = program_by("gpipe(microbatches=2)", graph, machines)
    rank = next(ranks_of(task, graph, program, Post()))
    rank.board.fail(ValueError("the disk is on fire"))
    assert list(beside(rank, coming(), {"values": coming(MessageGroup([]))})) == []


def test_nothing_waits_for_the_send_of_a_value(graph: Graph) -> None:
    """So a lane that receives values may be late in asking for the next one: only who takes it waits."""
    machines, seen = cluster_of(4), 0
    for name in RECIPES:
        try:
            phases = lower(graph, call(name, graph, machines), machines)
        except PartitaError:
            continue  # not for this model on these machines
        for role in (role for phase in phases for role in phase.program.roles):
            values = {i.name for i in role.instructions if isinstance(i.act, Send) and i.act.space is Space.VALUE}
            assert not [i.name for i in role.instructions if any(after.name in values for after in i.after)]
            seen += len(values)
    assert seen > 0


def test_lanes_that_have_no_thread(task: Task, graph: Graph) -> None:
    """Those that load, and those that receive values; none that receives while a rank may go away."""
    machines = cluster_of(2)
    program = program_by("one_f_one_b(microbatches=4)", graph, machines)
    for rank in ranks_of(task, graph, program, Post()):
        receiving = {i.lane for i in rank.role.instructions if isinstance(i.act, Receive)}
        loading = {"data"} if rank.feed.at_hand else set()
        assert set(led(rank)) == receiving | loading
        rank.spare = frozenset({1})
        assert set(led(rank)) == loading
