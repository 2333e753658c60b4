"""Messages between two parts of a run, each of which another process may take over at some moment.

worker         S0.3 ------ S1.3 --x       S0.3 ---- S1.3 ----      the server's process has died: what it was sent and
server         I0.3 ------ I1.3 -x                                 nobody else has is sent again, over a new link, to
its successor                       ..... I0.3 ---- I1.3 ----      the process that plays its part now; then the rest
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from partita.transport.transport import BlockingMessage, Tags
from partita.transport.ways import Ways, limit_of
from partita.units import Seconds

Route = tuple[int, int]


@dataclass
class Channel:
    """One end, that of part `mine`. Mutable, private to one run.

    `crossed` counts the finished rounds of each message, by key; `there` has the counts of the other end when the link
    was made; `last` has the round and tensor that was sent last under each key. `route` is the pair of processes that
    the link joins, this one first; `epoch` counts how often it has changed. `breaks` is called with a process that is
    gone.
    """

    mine: int
    other: int
    breaks: Callable[[int], None]
    route: Route = (-1, -1)
    ways: Ways | None = None
    epoch: int = 0
    crossed: dict[str, int] = field(default_factory=dict)
    there: Mapping[str, int] | None = None
    last: dict[str, tuple[int, torch.Tensor]] = field(default_factory=dict)
    spent: list[Ways] = field(default_factory=list)
    tags: Tags = field(default_factory=Tags)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def start(self, act: str, tensor: torch.Tensor, key: str, round: int) -> ChannelMessage:
        """Start to `send` or to `recv`."""
        message = ChannelMessage(self, act, tensor, key, round)
        message.begin()
        return message

    def turn(self, route: Route) -> dict[str, int]:
        """Begin to change the route; returns what has crossed so far. Nothing crosses until `open`."""
        with self.changed:
            self._close()
            self.route, self.there = route, None
            return dict(self.crossed)

    def hear(self, route: Route, there: Mapping[str, int]) -> None:
        """Note what the other end of this route has."""
        with self.changed:
            if route == self.route:
                self.there = there
                self.changed.notify_all()

    def open(self, route: Route, ways: Ways, timeout: Seconds) -> None:
        """The new route is linked by `ways`: send again what the other end lacks, and go on."""
        with self.changed:
            if route != self.route or self.there is None:
                return
            lacks = [key for key, (round, _) in self.last.items() if self.there.get(key, round + 1) <= round]
            again = [ChannelMessage(self, "send", self.last[key][1], key, self.last[key][0]) for key in lacks]
            self.ways = ways
            self.changed.notify_all()
        for message in again:
            message.block(timeout)

    def lose(self, epoch: int) -> None:
        """The process at the other end of the route is gone; ignored if the route has changed since that `epoch`."""
        with self.changed:
            if epoch != self.epoch:
                return
            self._close()
            gone = self.route[1]
        self.breaks(gone)

    def _close(self) -> None:
        if self.ways is not None:
            self.spent.append(self.ways)  # messages on their way may still ask it
        self.ways, self.epoch = None, self.epoch + 1


@dataclass
class ChannelMessage(BlockingMessage):
    """A message over a channel: started again whenever the route changes, unless the other end has it."""

    channel: Channel
    act: str
    tensor: torch.Tensor
    key: str
    round: int
    work: Any = None
    epoch: int = -1
    done: bool = False

    def begin(self) -> None:
        """Start it on the link that there is."""
        with self.channel.changed:
            ways, self.epoch, self.work = self.channel.ways, self.channel.epoch, None
        if ways is None or self._has():
            return
        try:
            tag = self.channel.tags.of(self.key, self.channel.other)
            self.work = ways.start(self.act, self.tensor, self.channel.mine, self.channel.other, tag)
        except RuntimeError:
            self.channel.lose(self.epoch)

    def block(self, timeout: Seconds) -> bool:
        """Wait until ready; False if `timeout` seconds passed before."""
        until = time.monotonic() + timeout
        while not self._over():
            left = until - time.monotonic()
            if self.work is None or self.epoch != self.channel.epoch:
                with self.channel.changed:
                    if not self.channel.changed.wait_for(lambda: self.channel.ways is not None, left):
                        return False
                self.begin()
                continue
            try:
                self.work.wait(limit_of(left))
            except RuntimeError:
                if time.monotonic() >= until:
                    return False
                self.channel.lose(self.epoch)
            else:
                self._crosses()
        return True

    def _crosses(self) -> None:
        """Count it as over if the route is unchanged; if not, the other end has not counted it, or sends it again."""
        with self.channel.changed:
            if self.epoch == self.channel.epoch:
                self._counts()

    def _over(self) -> bool:
        with self.channel.changed:
            if not self.done and self._has():
                self._counts()
            return self.done

    def _has(self) -> bool:
        """Whether the other end has what this would send."""
        there = self.channel.there or {}
        return self.act == "send" and there.get(self.key, 0) > self.round

    def _counts(self) -> None:
        self.done = True
        self.channel.crossed[self.key] = max(self.channel.crossed.get(self.key, 0), self.round + 1)
        if self.act == "send":
            self.channel.last[self.key] = self.round, self.tensor

    def __str__(self) -> str:
        return f"a message to or from rank {self.channel.other}"
