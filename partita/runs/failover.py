"""How a run with replicated servers goes on without one of them: a process of its chain plays its part, too.

process 0           S0.7 --x  `_dies`: tells it    `_turn`, `_meet`: says and hears what crossed; links; S0.7 again ----
process 3           R0.7 -x
process 4, part 4   -------   is at rest -------------------------------------------------------------------------------
           part 3             `_copy` of part 4    `_turn`, `_meet` with each partner     `_play` from where all are ---

Who plays what is a `cast`, what is said in the store are `deaths`, what becomes of a part's progress is `takeover`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any, Final

from partita.errors import RunError
from partita.runs.assembly import carry_over, make_rank
from partita.runs.cast import NOBODY, Cast
from partita.runs.deaths import crossed_by_other, dead_among, deaths, place_to_link, tell_crossed, tell_death
from partita.runs.presence import changes, has_left, leave
from partita.runs.session import Session
from partita.runs.takeover import CompletedRounds, copied, finished_over, messages_of, progress, take_over, unneeded
from partita.runtime.leg import Interval, Leg
from partita.runtime.rank import Rank
from partita.runtime.worker import drive
from partita.transport.channel import Channel, Route
from partita.transport.processes import Processes
from partita.transport.store import line_to_store
from partita.transport.ways import link
from partita.units import Seconds

WATCH_INTERVAL: Final[Seconds] = 0.1  # between looks whether a server has died
POLL_INTERVAL: Final[Seconds] = 0.01


@dataclass
class Failover:
    """One process's view, in the `number`-th run of its session. While entered, a thread watches for `kept`
    (replicated) servers that are dead. `plays` has the transport of each part that this process plays."""

    session: Session
    kept: frozenset[int]
    leg: Leg
    number: int
    rank: Rank | None = None
    cast: Cast = field(init=False)
    plays: dict[int, Processes] = field(default_factory=dict)
    failure: BaseException | None = None
    done: threading.Event = field(default_factory=threading.Event)
    turning: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.cast = Cast(self.leg.program, self.kept)

    def __enter__(self) -> None:
        store, me = self._client(), self.session.rank
        self.plays[me] = self.session.transport
        own = messages_of(me, self.leg.program.role_of[me]).values()
        for channel in self._open_channels(me, dict.fromkeys(own, 0)):
            route = self.cast.route(channel.mine, channel.other)
            channel.turn(route)
            channel.hear(route, {})
            self._link(store, channel, route)
        threading.Thread(target=self._watch, name="failover", daemon=True).start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """A server stays until all workers have their last answers, since it may have to give them for another one."""
        store, me = self._client(), self.session.rank
        leave(store, me)
        workers = [rank for role in self.leg.program.roles if role.keeps == "model" for rank in role.ranks]
        try:
            while me in self.kept and kind is None and not has_left(store, *workers):
                if self.failure is not None:
                    raise self.failure
                time.sleep(POLL_INTERVAL)
        finally:
            self.done.set()

    def begins(self, rank: Rank, leg: int) -> None:
        """The run's only leg begins."""
        self.rank = rank

    def until(self, met: Callable[[], bool], what: str) -> None:
        """Poll until `met`. Raises RunError once this process's run is over, or after the timeout."""
        end = time.monotonic() + self.session.timeout
        while not met():
            if self.done.is_set() or time.monotonic() > end:
                over = "when its run was over" if self.done.is_set() else f"after {self.session.timeout:g} s"
                raise RunError(f"rank {self.session.rank} still waited {over} for {what}", rank=self.session.rank)
            time.sleep(POLL_INTERVAL)

    def _watch(self) -> None:
        """Until the run is over: learn who has died, and follow from it."""
        store = self._client()
        for _ in changes(partial(deaths, store), self.done, WATCH_INTERVAL):
            self.cast = self.cast.without(dead_among(store, self.cast.there))
            self._follow()

    def _follow(self) -> None:
        """Take over the parts that fall to this process, and redirect all channels."""
        for part in sorted(self.cast.dead - self.plays.keys()):
            if self.cast.player(part) == self.session.rank:
                self.plays[part] = Processes(part)
                threading.Thread(target=self._take_part, args=(part,), daemon=True).start()
        for transport in tuple(self.plays.values()):
            for channel in tuple(transport.channels.values()):
                self._turn(channel)

    def _open_channels(self, part: int, completed: CompletedRounds) -> list[Channel]:
        """Make the channels of a part that this process plays, over which these rounds have crossed."""
        channels = {other: Channel(part, other, self._dies) for other in self.cast.partners(part)}
        _count(channels, part, completed)
        self.plays[part].channels = channels
        return list(channels.values())

    def _dies(self, process: int) -> None:
        """A process is gone."""
        tell_death(self._client(), process)

    def _turn(self, channel: Channel) -> None:
        """Give a channel the route between who play its parts now; nothing crosses until both ends have met."""
        with self.turning:
            route = self.cast.route(channel.mine, channel.other)
            if route == channel.route or NOBODY in route:
                return
            crossed = channel.turn(route)
        threading.Thread(target=self._meet, args=(channel, route, crossed), daemon=True).start()

    def _meet(self, channel: Channel, route: Route, crossed: dict[str, int]) -> None:
        """Exchange with the other end of a channel what has crossed it, and open it over a new link."""
        with suppress(RuntimeError):  # another death has come between
            store = self._client()
            tell_crossed(store, channel, route, crossed)
            while (theirs := crossed_by_other(store, channel, route)) is None:
                if channel.route != route or self.done.is_set():
                    return
                if has_left(store, channel.other) and crossed_by_other(store, channel, route) is None:
                    channel.hear(route, {})
                    return
                time.sleep(POLL_INTERVAL)
            channel.hear(route, theirs)
            self._link(store, channel, route)

    def _link(self, store: Any, channel: Channel, route: Route) -> None:
        """Link the two processes of a route, and open the channel over that."""
        place = place_to_link(store, channel, route)
        ways = link(place, channel.mine, channel.other, self.session.timeout)
        channel.open(route, ways, self.session.timeout)

    def _take_part(self, part: int) -> None:
        """Play another part to its end, besides this process's own."""
        try:
            self._play(self._copy(part))
        except BaseException as error:
            self.failure = error
            if self.rank is not None:
                self.rank.board.fail(error)

    def _copy(self, part: int) -> Rank:
        """A new Rank of a part in the state of this process's own one, once that is at rest."""
        session, program = self.session, self.leg.program
        self.until(lambda: self.rank is not None, "its own part to begin")
        assert self.rank is not None
        own = self.rank
        first = session.first(own.state)
        work = session.workload()
        state = carry_over(work, program, part, first, None)
        fresh = make_rank(work, program, part, state, self.plays[part], first_step=self.leg.step)
        channels = session.transport.channels
        self.until(lambda: copied(fresh, own, finished_over(channels)), "its own part to be at rest")
        return fresh

    def _play(self, fresh: Rank) -> None:
        """Learn from all partners of a part which of its messages they have, and play it from there on."""
        part = fresh.rank
        for channel in self._open_channels(part, unneeded(fresh)):
            self._turn(channel)
        channels = self.plays[part].channels
        self.until(
            lambda: all(channel.there is not None for channel in channels.values()),
            f"what the others have of the messages of rank {part}, whose part it takes over",
        )
        take_over(fresh, finished_over(channels))
        _count(channels, part, progress(fresh))
        start = min(fresh.board.done.values())
        drive(fresh, Interval(self.leg.rounds, start), lambda round: False, self.session.timeout)

    def _client(self) -> Any:
        return line_to_store(self.number, self.session.timeout)


def _count(channels: dict[int, Channel], part: int, completed: CompletedRounds) -> None:
    """Note in a part's channels how many rounds of its messages have crossed them."""
    for message, rounds in completed.items():
        if message.other(part) in channels:
            channels[message.other(part)].crossed[message.key] = rounds
