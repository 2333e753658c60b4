"""Lanes that choose their next instruction at run time.

A lane has a slot for each instruction that may be in flight at once; a free slot takes an instruction that is ready.

lane push, credit 8   ready S3 S1 S2 of 4 bytes     slot 0   S1------ S2 ...       8 bytes in flight, and the next when
                                                    slot 1   S3----------          one of these is done
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from heapq import heappop, heappush
from itertools import accumulate, count
from typing import TypeAlias

from partita.program.flight import in_flight
from partita.program.instruction import After, Instruction, Receive
from partita.program.program import Lane
from partita.runtime.acts import carry_out
from partita.runtime.leg import Interval
from partita.runtime.membership import DroppableMessage, waits_in_vain
from partita.runtime.rank import Rank
from partita.runtime.waits import Posted, StartWait, skips
from partita.transport.transport import Pending
from partita.units import Bytes, Seconds

Turn: TypeAlias = tuple[int, int, int]


@dataclass
class Dispatch:
    """The state that the slots of one lane share.

    `at` has the next round of each waiting instruction, `posted` the Receives that were started before their turn,
    `busy` the number of slots at work, `in_flight` the bytes in flight. An instruction that is left out while a peer is
    away waits until the peer is back, or until the rank has nothing else to do.

    The lane is asked after every change whether it may go on, and a server's has hundreds of instructions. So nothing
    here looks through all of them: `open` has the waiting instructions that may start, each with its priority, the
    moment since which it may and its place among those put; `queue` is a heap of these, in which closed ones stay until
    they come to the top. Tested again are only those that a change may have affected (`untested`; the board notes
    them). `unposted` are open Receives that are to be started, `unwatched` those started for which no thread waits.
    """

    rank: Rank
    lane: Lane
    interval: Interval
    sizes: dict[str, Bytes]
    at: dict[str, int] = field(default_factory=dict)
    posted: dict[str, Posted] = field(default_factory=dict)
    open: dict[str, Turn] = field(default_factory=dict)
    queue: list[tuple[Turn, str]] = field(default_factory=list)
    places: dict[str, int] = field(default_factory=dict)
    untested: dict[str, None] = field(default_factory=dict)
    unposted: dict[str, None] = field(default_factory=dict)
    unwatched: dict[str, Posted] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=count)
    busy: int = 0
    in_flight: Bytes = 0

    def __post_init__(self) -> None:
        for name in self.sizes:
            for cause in ("", *self.rank.role.causes[name]):
                self.rank.board.watchers.setdefault(cause, []).append((self.untested, name))

    @cached_property
    def count(self) -> int:
        """The number of slots: as many of the lane's smallest instructions as fill its credit; one of Receives alone,
        which are started before their turn."""
        if all(isinstance(self.rank.role.on_name[name].act, Receive) for name in self.sizes):
            return 1
        before = [0, *accumulate(sorted(self.sizes.values()))][: len(self.sizes)]
        return max(sum(size < self.lane.credit for size in before), 1)

    @cached_property
    def causes(self) -> frozenset[str]:
        """The names whose progress may let one of its slots go on."""
        return frozenset((self.lane.name,)).union(*(self.rank.role.causes[name] for name in self.sizes))

    def free(self) -> bool:
        """Whether one more instruction may start."""
        return self.in_flight < self.lane.credit if self.lane.credit else self.busy == 0

    def over(self) -> bool:
        """Whether no instance is left."""
        self._catch_up()
        return self.busy == 0 and (not self.at or waits_in_vain(self.rank, self.lane.name, self.at.keys()))

    def passed(self, round: int) -> bool:
        """Whether no instance of this round or an earlier one is left."""
        void = self.rank.board.void
        return not any(at <= round and name not in void for name, at in self.at.items())

    def turn(self, name: str) -> StartWait:
        """The wait of a waiting instruction."""
        return StartWait(self.rank, self.rank.role.on_name[name], self.at[name], self.posted.get(name))

    def put(self, instruction: Instruction, round: int) -> None:
        """Queue an instance."""
        with self.rank.board.changed:
            self.at[instruction.name], self.untested[instruction.name] = round, None
            self.places[instruction.name] = next(self.numbers)
            self.rank.board.changed.notify_all(self.lane.name)

    def _catch_up(self) -> None:
        """Drop Receives from peers that are gone, and skip the rounds that a peer missed which came back."""
        if not self.rank.spare:
            return
        pending = {name: one.pending for name, one in self.posted.items()}
        for name in [n for n, one in pending.items() if isinstance(one, DroppableMessage) and one.over()]:
            del self.posted[name]
            self.unwatched.pop(name, None)
            self.untested[name] = None
        for name, round in tuple(self.at.items()):
            self.at[name] = max(round, self.rank.board.done.get(name, 0))
            if self.at[name] >= self.interval.last(self.rank.role.on_name[name]):
                del self.at[name]
            if self.at.get(name) != round:
                self.untested[name] = None

    def _look(self) -> None:
        """Test again which waiting instructions may start."""
        while self.untested:
            name, _ = self.untested.popitem()
            if name not in self.at or not (wait := self.turn(name)).open():
                self.open.pop(name, None)
                continue
            turn = wait.instruction.priority, wait.since(), self.places[name]
            if self.open.get(name) != turn:
                self.open[name] = turn
                heappush(self.queue, (turn, name))
            if isinstance(wait.instruction.act, Receive) and wait.posted is None:
                self.unposted[name] = None

    def _post(self) -> None:
        """Start the Receives that may start."""
        for name in self.unposted:
            instruction, round = self.rank.role.on_name[name], self.at.get(name, -1)
            if name in self.open and name not in self.posted and not skips(self.rank, instruction, round):
                posted = Posted(_start(self.rank, instruction, round), self.rank.board, name)
                self.posted[name] = self.unwatched[name] = posted
                self.untested[name] = None
        self.unposted.clear()

    def first(self) -> str | None:
        """Of the instances that may start one with the lowest priority number, and of these the one that has been open
        longest; None if there is none."""
        while self.queue and self.open.get(self.queue[0][1]) != self.queue[0][0]:
            heappop(self.queue)
        return self.queue[0][1] if self.queue else None

    def take(self) -> tuple[Instruction, int, Posted | None] | None:
        """The instance that a slot should carry out now, if any; Receives that may start are posted. The message that
        arrived first is taken first. What opens meanwhile is not considered: the lane would wait for one message while
        others are there."""
        with self.rank.board.changed:
            self._catch_up()
            self._look()
            while self.unposted:
                self._post()
                self._look()
            chosen = self.first() if self.free() else None
            if chosen is None:
                return None
            round = self.at.pop(chosen)
            del self.open[chosen]
            self.unwatched.pop(chosen, None)
            self.busy += 1
            self.in_flight += self.sizes[chosen]
            return self.rank.role.on_name[chosen], round, self.posted.pop(chosen, None)

    def landed(self, instruction: Instruction) -> None:
        """The bytes that an instruction had in flight have arrived."""
        with self.rank.board.changed:
            self.in_flight -= self.sizes[instruction.name]
            self.rank.board.changed.notify_all(self.lane.name)

    def rest(self) -> None:
        """A slot has finished what it took."""
        with self.rank.board.changed:
            self.busy -= 1
            self.rank.board.changed.notify_all(self.lane.name)

    def clear(self) -> bool:
        """Whether a slot can go on, by what is known already. Messages are not polled, since polling one starts a
        thread that waits for it."""
        with self.rank.board.changed:
            if self.rank.board.failure is not None or self.over():
                return True
            self._look()
            return self.free() and bool(self.open)

    def ready(self) -> bool:
        """Whether `block` would return at once."""
        with self.rank.board.changed:
            for posted in self.unwatched.values():
                posted.ask()
            return self.clear()

    def block(self, timeout: Seconds) -> bool:
        """Wait until ready; False if `timeout` seconds passed before."""
        with self.rank.board.changed:
            for posted in self.unwatched.values():
                posted.watch()
            self.unwatched.clear()
            return self.rank.board.changed.wait_for(self.ready, timeout, self.causes)

    def __str__(self) -> str:
        return str(self.turn(next(iter(self.at)))) if self.at else f"what lane {self.lane.name} has in flight"


@dataclass(frozen=True)
class DoneWait:
    """Waits until an instance of an instruction is done."""

    rank: Rank
    after: After
    round: int

    def ready(self) -> bool:
        """Whether `block` would return at once."""
        return self.rank.board.failure is not None or self.rank.board.has(self.after, self.round)

    def block(self, timeout: Seconds) -> bool:
        """Wait until ready; False if `timeout` seconds passed before."""
        with self.rank.board.changed:
            return self.rank.board.changed.wait_for(self.ready, timeout, (self.after.name,))

    def __str__(self) -> str:
        return f"{self.after.name} of round {self.round}"


def _start(rank: Rank, instruction: Instruction, round: int) -> Pending:
    pending = carry_out(rank, instruction, round)
    assert isinstance(pending, Pending)
    return pending


def until(rank: Rank, instruction: Instruction, round: int) -> Generator[Pending, None, None]:
    """Wait for the instruction until whose end another one holds its lane."""
    if instruction.until:
        yield DoneWait(rank, After(instruction.until), round)


def dispatch_of(rank: Rank, lane: Lane, interval: Interval) -> Dispatch:
    """The shared state of a lane's slots, all of them free."""
    return Dispatch(
        rank, lane, interval, {i.name: in_flight(rank.program, rank.role, i) for i in rank.role.on(lane.name)}
    )
