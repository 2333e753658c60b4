"""Which process plays which part of a run with replicated servers, after processes have died.

part 3   process 3 -----x                                  a link breaks; whoever notices says so in the store
part 4   process 4 ------------------------------
part 3            process 4 waits until it is at rest, copies its state, learns from all others which of part 3's
                  messages they have, and goes on with part 3 in threads of its own ---------------

What processes say to each other in the store:

deaths             how often anybody has noticed a death, at which all look now and then; dead/3: it was process 3's
stand/0.0-3.4/0    what has crossed the channel of parts 0 and 3 by what part 0 knows, while processes 0 and 4 play
                   them; once each end knows the other's, they link: link/0.0-3.4
over/0             process 0 has ended its own part
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final

from partita.errors import RunError
from partita.program.absence import met_by, successor_of
from partita.program.instruction import Receive, Send
from partita.program.program import Program
from partita.runs.assembly import carry_over, make_rank
from partita.runs.session import Session
from partita.runs.takeover import CompletedRounds, asked, copied, ends_of, take_over
from partita.runtime.leg import Interval, Leg
from partita.runtime.rank import Rank
from partita.runtime.worker import drive
from partita.transport.channel import Channel, Route
from partita.transport.processes import Processes
from partita.transport.store import line_to_store, prefixed
from partita.transport.ways import link
from partita.units import Seconds

WATCH_INTERVAL: Final[Seconds] = 0.1  # between looks whether a server has died
POLL_INTERVAL: Final[Seconds] = 0.01


@dataclass
class Failover:
    """One process's view, in the `number`-th run of its session. While entered, a thread watches for `kept`
    (replicated) servers that are `dead`. `plays` has the transport of each part that this process plays."""

    session: Session
    kept: frozenset[int]
    leg: Leg
    number: int
    rank: Rank | None = None
    dead: set[int] = field(default_factory=set)
    plays: dict[int, Processes] = field(default_factory=dict)
    failure: BaseException | None = None
    done: threading.Event = field(default_factory=threading.Event)
    turning: threading.Lock = field(default_factory=threading.Lock)

    @property
    def program(self) -> Program:
        """The Program of the run."""
        return self.leg.program

    def __enter__(self) -> None:
        store, me = self._client(), self.session.rank
        assert self.session.transport is not None
        self.plays[me] = self.session.transport
        acts = [i.act for i in self.program.role_of[me].instructions if isinstance(i.act, Send | Receive)]
        self._bridge(me, {(act.key, ends_of(me, act)): 0 for act in acts})
        for channel in self.session.transport.channels.values():
            channel.turn(self._route(channel))
            channel.hear(channel.route, {})
            self._lead(store, channel, channel.route)
        threading.Thread(target=self._watch, name="failover", daemon=True).start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """A server stays until all workers have their last answers, since it may have to give them for another one."""
        store, me = self._client(), self.session.rank
        store.set(f"over/{me}", "")
        workers = [f"over/{rank}" for role in self.program.roles if role.keeps == "model" for rank in role.ranks]
        try:
            while me in self.kept and kind is None and not store.check(workers):
                if self.failure is not None:
                    raise self.failure
                time.sleep(POLL_INTERVAL)
        finally:
            self.done.set()

    def begins(self, rank: Rank, leg: int) -> None:
        """The run's only leg begins."""
        self.rank = rank

    def _bridge(self, part: int, completed: CompletedRounds) -> None:
        """Open channels from a part to every part with which it has messages that must survive a process; `completed`
        counts the rounds that are over."""
        others = {other for other in met_by(self.program, part) if part in self.kept or other in self.kept}
        channels = {other: Channel(part, other, self._dies) for other in sorted(others)}
        for (key, ends), rounds in completed.items():
            if sum(ends) - part in channels:
                channels[sum(ends) - part].crossed[key] = rounds
        self.plays[part].channels = channels

    def _player(self, part: int) -> int:
        """The process that plays a part; -1 if none can."""
        if part not in self.dead:
            return part
        return successor_of(self.program, self.kept - self.dead, part)

    def _route(self, channel: Channel) -> Route:
        """Who plays this end of a channel, and who the other one."""
        return self._player(channel.mine), self._player(channel.other)

    def _dies(self, process: int) -> None:
        """A process is gone."""
        store = self._client()
        store.set(f"dead/{process}", "")
        store.add("deaths", 1)

    def _watch(self) -> None:
        """Until the run is over: learn who has died, and follow from it."""
        store, before = self._client(), 0
        while not self.done.wait(WATCH_INTERVAL):
            if (now := store.add("deaths", 0)) == before:
                continue
            before = now
            self.dead |= {one for one in self.kept - self.dead if store.check([f"dead/{one}"])}
            self._follow()

    def _follow(self) -> None:
        """Take over the parts that fall to this process, and redirect all channels."""
        for part in sorted(self.dead - self.plays.keys()):
            if self._player(part) == self.session.rank:
                self.plays[part] = Processes(part)
                threading.Thread(target=self._play, args=(part,), daemon=True).start()
        for transport in tuple(self.plays.values()):
            for channel in tuple(transport.channels.values()):
                self._turn(channel)

    def _turn(self, channel: Channel) -> None:
        """Give a channel the route between who play its parts now; nothing crosses until both ends have met."""
        with self.turning:
            route = self._route(channel)
            if route == channel.route or -1 in route:
                return
            crossed = channel.turn(route)
        threading.Thread(target=self._meet, args=(channel, route, crossed), daemon=True).start()

    def _meet(self, channel: Channel, route: Route, crossed: dict[str, int]) -> None:
        """Exchange with the other end of a channel what has crossed it, and open it over a new link."""
        with suppress(RuntimeError):  # another death has come between
            store, name = self._client(), _name(channel, route)
            store.set(f"stand/{name}/{channel.mine}", json.dumps(crossed))
            theirs, over = f"stand/{name}/{channel.other}", f"over/{channel.other}"
            while not store.check([theirs]):
                if channel.route != route or self.done.is_set():
                    return
                if store.check([over]) and not store.check([theirs]):
                    channel.hear(route, {})
                    return
                time.sleep(POLL_INTERVAL)
            channel.hear(route, json.loads(store.get(theirs)))
            self._lead(store, channel, route)

    def until(self, met: Callable[[], bool], what: str) -> None:
        """Poll until `met`. Raises RunError once this process's run is over, or after the timeout."""
        end = time.monotonic() + self.session.timeout
        while not met():
            if self.done.is_set() or time.monotonic() > end:
                over = "when its run was over" if self.done.is_set() else f"after {self.session.timeout:g} s"
                raise RunError(f"rank {self.session.rank} still waited {over} for {what}", rank=self.session.rank)
            time.sleep(POLL_INTERVAL)

    def _lead(self, store: Any, channel: Channel, route: Route) -> None:
        """Link the two processes of a route, and open the channel over that."""
        place = prefixed(store, f"link/{_name(channel, route)}")
        ways = link(place, channel.mine, channel.other, self.session.timeout)
        channel.open(route, ways, self.session.timeout)

    def _play(self, part: int) -> None:
        """Play another part to its end, besides this process's own."""
        try:
            fresh, transport = self._fresh(part), self.plays[part]
            self._bridge(part, asked(fresh))
            for channel in transport.channels.values():
                self._turn(channel)
            self.until(
                lambda: all(channel.there is not None for channel in transport.channels.values()),
                f"what the others have of the messages of rank {part}, whose part it takes over",
            )
            take_over(fresh, _completed_rounds(transport))
            for i in fresh.role.instructions:
                if isinstance(i.act, Send | Receive):
                    other = sum(ends_of(part, i.act)) - part
                    transport.channels[other].crossed[i.act.key] = fresh.board.done[i.name]
            start = min(fresh.board.done.values())
            drive(fresh, Interval(self.leg.rounds, start), lambda round: False, self.session.timeout)
        except BaseException as error:
            self.failure = error
            if self.rank is not None:
                self.rank.board.fail(error)

    def _fresh(self, part: int) -> Rank:
        """A new Rank of a part in the state of this process's own one, once that is at rest."""
        session, program = self.session, self.program
        self.until(lambda: self.rank is not None, "its own part to begin")
        assert self.rank is not None
        own = self.rank
        first = session.first(own.state)
        state = carry_over(session.graph, program, part, session.task, first, None, session.device)
        fresh = make_rank(
            session.task, session.graph, program, part, state, self.plays[part], seed=session.seed,
            first_step=self.leg.step, device=session.device,
        )  # fmt: skip
        assert session.transport is not None
        transport = session.transport
        self.until(lambda: copied(fresh, own, _completed_rounds(transport)), "its own part to be at rest")
        return fresh

    def _client(self) -> Any:
        return line_to_store(self.number, self.session.timeout)


def _name(channel: Channel, route: Route) -> str:
    """A name of the channel over a route, the same at both ends."""
    (a, p), (b, q) = sorted(((channel.mine, route[0]), (channel.other, route[1])))
    return f"{a}.{p}-{b}.{q}"


def _completed_rounds(transport: Processes) -> CompletedRounds:
    """Rounds of each message of a part that are over, by its own count, or else by the other end's."""
    found: dict[tuple[str, tuple[int, int]], int] = {}
    for other, channel in transport.channels.items():
        for key, rounds in {**(channel.there or {}), **channel.crossed}.items():
            for ends in ((channel.mine, other), (other, channel.mine)):
                found[key, ends] = rounds
    return found
