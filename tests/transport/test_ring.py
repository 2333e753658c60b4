"""Rings of messages: sums where they belong, whole tensors everywhere, for any parts, any ranks, any timing."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from queue import Queue

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from partita.cost.rings import bytes_sent
from partita.program.layout import widest
from partita.program.space import Kind
from partita.transport.hops import by_schedule
from partita.transport.inprocess import InProcess, Rendezvous
from partita.transport.transport import Pending, Steps
from partita.wire.algorithms import BACKEND, schedule_of
from partita.wire.schedule import in_halves
from tests.threads import each_in_a_thread

Ranks = tuple[int, ...]
HALVES = (Kind.REDUCE_SCATTER, Kind.ALL_GATHER)


@dataclass
class Arrival:
    """A message that is awaited."""

    queue: Queue[torch.Tensor]
    into: torch.Tensor
    came: bool = False

    def ready(self) -> bool:
        if not self.came and not self.queue.empty():
            self.block(0.0)
        return self.came

    def block(self, timeout: float) -> bool:
        if not self.came:
            self.into.copy_(self.queue.get(timeout=timeout))
            self.came = True
        return True


class Left:
    """A message that has been sent."""

    def ready(self) -> bool:
        return True

    def block(self, timeout: float) -> bool:
        return True


@dataclass
class Post:
    """Messages between threads, in order by sender, receiver and key; counts what is sent."""

    boxes: dict[tuple[int, int, str], Queue[torch.Tensor]] = field(default_factory=lambda: defaultdict(Queue))
    sent: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    making: threading.Lock = field(default_factory=threading.Lock)

    def box(self, source: int, target: int, key: str) -> Queue[torch.Tensor]:
        """Two threads that ask at once must get the same one."""
        with self.making:
            return self.boxes[source, target, key]


@dataclass(frozen=True)
class Posting:
    """The transport of one of these threads."""

    rank: int
    post: Post

    def send(self, tensor: torch.Tensor, to: int, key: str, round: int) -> Pending:
        self.post.box(self.rank, to, key).put(tensor.clone())
        self.post.sent[self.rank] += tensor.numel() * tensor.element_size()
        return Left()

    def receive(self, tensor: torch.Tensor, source: int, key: str, round: int) -> Pending:
        return Arrival(self.post.box(source, self.rank, key), tensor)

    def collective(
        self, kind: Kind, tensor: torch.Tensor, group: Ranks, lane: str, key: str, round: int, edges: Ranks = ()
    ) -> Steps:
        schedule = schedule_of(kind, BACKEND, len(group))
        halves, cuts = in_halves(schedule, edges, widest(edges) * tensor.element_size(), least=8)
        return by_schedule(self, halves, tensor, group, key, round, edges=cuts)


@st.composite
def shared(draw: st.DrawFn) -> tuple[Ranks, Ranks]:
    """(ranks that share, the edges of what each owns): parts of any size, also none."""
    group = draw(st.lists(st.integers(0, 9), min_size=2, max_size=5, unique=True))
    parts = draw(st.lists(st.integers(0, 7), min_size=len(group), max_size=len(group)))
    return tuple(sorted(group)), tuple(sum(parts[:k]) for k in range(len(parts) + 1))


def brought(group: Ranks, elements: int) -> dict[int, torch.Tensor]:
    return {rank: torch.arange(elements, dtype=torch.float64) * (rank + 1) + rank for rank in group}


def rung(kind: Kind, group: Ranks, edges: Ranks, asked: bool) -> tuple[dict[int, torch.Tensor], Post]:
    """What each rank holds after a ring among threads; `asked` polls as the driver of one thread does."""
    post, flats = Post(), brought(group, edges[-1])

    def run(rank: int) -> None:
        for pending in Posting(rank, post).collective(kind, flats[rank], group, "wire", "A", 0, edges):
            while asked and not pending.ready():
                time.sleep(1e-4)
            pending.block(5.0)

    each_in_a_thread(group, run)
    return flats, post


@given(shared(), st.booleans())
def test_each_owner_ends_with_the_sum_of_its_part(them: tuple[Ranks, Ranks], asked: bool) -> None:
    group, edges = them
    flats, post = rung(Kind.REDUCE_SCATTER, group, edges, asked)
    total = sum(brought(group, edges[-1]).values(), torch.zeros(edges[-1], dtype=torch.float64))
    for k, rank in enumerate(group):
        own = slice(*edges[k : k + 2])
        assert torch.equal(flats[rank][own], total[own])
    assert [post.sent[rank] for rank in group] == bytes_sent(Kind.REDUCE_SCATTER, edges[-1], 8, len(group), edges)


@given(shared(), st.booleans())
def test_everybody_ends_with_what_each_owner_had(them: tuple[Ranks, Ranks], asked: bool) -> None:
    group, edges = them
    flats, post = rung(Kind.ALL_GATHER, group, edges, asked)
    before = brought(group, edges[-1])
    whole = torch.cat([before[rank][edges[k] : edges[k + 1]] for k, rank in enumerate(group)])
    assert all(torch.equal(flat, whole) for flat in flats.values())
    assert [post.sent[rank] for rank in group] == bytes_sent(Kind.ALL_GATHER, edges[-1], 8, len(group), edges)


@given(shared())
def test_ranks_of_one_process_do_the_same(them: tuple[Ranks, Ranks]) -> None:
    """Integers, so that the order of sums shows in nothing. What others own is no number after a scatter."""
    group, edges = them
    for kind in HALVES:
        rendezvous, flats = Rendezvous(), brought(group, edges[-1])
        for rank in group:
            InProcess(rank, rendezvous).collective(kind, flats[rank], group, "wire", "A", 0, edges)
        rings, _ = rung(kind, group, edges, asked=False)
        for k, rank in enumerate(group):
            own = slice(*edges[k : k + 2]) if kind is Kind.REDUCE_SCATTER else slice(None)
            assert torch.equal(flats[rank][own], rings[rank][own])
            rest = torch.cat([flats[rank][: edges[k]], flats[rank][edges[k + 1] :]])
            assert kind is Kind.ALL_GATHER or bool(rest.isnan().all())


@given(shared())
def test_both_halves_move_what_an_all_reduce_moves(them: tuple[Ranks, Ranks]) -> None:
    """ME-01: 2(N-1)/N n bytes a rank; all together 2(N-1) n, whatever the parts."""
    group, edges = them
    halves = [bytes_sent(kind, edges[-1], 4, len(group), edges) for kind in HALVES]
    assert sum(map(sum, halves)) == sum(bytes_sent(Kind.ALL_REDUCE, edges[-1], 4, len(group)))
    if edges[-1] and len({b - a for a, b in pairwise(edges)}) == 1:
        n = len(group)
        assert {sum(both) for both in zip(*halves, strict=True)} == {2 * (n - 1) * 4 * edges[-1] // n}


def test_what_a_message_raises_reaches_whoever_waits() -> None:
    class Lost(Left):
        def block(self, timeout: float) -> bool:
            raise RuntimeError("connection lost")

    class Losing(Posting):
        def receive(self, tensor: torch.Tensor, source: int, key: str, round: int) -> Pending:
            return Lost()

    steps = Losing(0, Post()).collective(Kind.ALL_GATHER, torch.zeros(4), (0, 1), "wire", "A", 0, (0, 2, 4))
    with pytest.raises(RuntimeError, match="connection lost"):
        ended(steps)


def test_halves_take_turns_and_sums_wait_for_what_is_sent_of_them() -> None:
    """Of two ranks: the second half is under way while the first is added; an all-reduce's gather must not overwrite
    a part whose sum is still being sent."""
    said: list[str] = []

    @dataclass
    class Slow(Left):
        name: str

        def block(self, timeout: float) -> bool:
            said.append(self.name)
            return True

    @dataclass(frozen=True)
    class Telling:
        rank: int = 0

        def send(self, tensor: torch.Tensor, to: int, key: str, round: int) -> Pending:
            said.append(f"send {key}")
            return Slow(f"sent {key}")

        def receive(self, tensor: torch.Tensor, source: int, key: str, round: int) -> Pending:
            said.append(f"ask {key}")
            return Slow(f"came {key}")

        collective = Posting.collective

    ended(Telling().collective(Kind.REDUCE_SCATTER, torch.zeros(8), (0, 1), "wire", "A", 0, (0, 4, 8)))
    assert said[:6] == ["ask A~0/0", "send A~0/0", "ask A~1/0", "send A~1/0", "came A~0/0", "came A~1/0"]
    said.clear()
    ended(by_schedule(Telling(), schedule_of(Kind.ALL_REDUCE, "ring", 2), torch.zeros(8), (0, 1), "A", 0))
    assert said == ["ask A/0", "send A/0", "came A/0", "ask A/1", "send A/1", "came A/1", "sent A/0", "sent A/1"]


@pytest.mark.parametrize("name", ["ring", "tree", "doubling", "halving", "blocks", "pairwise", "butterfly"])
def test_nothing_changes_while_it_is_sent(name: str) -> None:
    """Messages are on their way until somebody has waited for them, and others may come at any time before."""

    @dataclass
    class Flying(Left):
        part: torch.Tensor
        before: torch.Tensor

        def block(self, timeout: float) -> bool:
            assert torch.equal(self.part, self.before)
            return True

    @dataclass
    class Coming(Left):
        into: torch.Tensor

        def block(self, timeout: float) -> bool:
            self.into.fill_(1.0)
            return True

    @dataclass(frozen=True)
    class Slowly:
        rank: int

        def send(self, tensor: torch.Tensor, to: int, key: str, round: int) -> Pending:
            return Flying(tensor, tensor.clone())

        def receive(self, tensor: torch.Tensor, source: int, key: str, round: int) -> Pending:
            return Coming(tensor)

        collective = Posting.collective

    for ranks in range(2, 8):
        for rank in range(ranks):
            schedule, group = schedule_of(Kind.ALL_REDUCE, name, ranks), tuple(range(ranks))
            ended(by_schedule(Slowly(rank), schedule, torch.arange(2.0, 16.0), group, "A", 0))


def ended(steps: Steps) -> None:
    for pending in steps:
        pending.block(1.0)
