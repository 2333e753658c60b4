"""Messages between two parts of a run, either of which another process may play from some moment on.

worker         S0.3 ------ S1.3 --x       S0.3 ---- S1.3 ----      the server's process has died: what it was sent and
server         I0.3 ------ I1.3 -x                                 nobody else has is sent once more, over a new link,
its heir                            ..... I0.3 ---- I1.3 ----      to who plays its part now, and then the rest
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch

from partita.runtime.transport import Unasked, tag_of
from partita.units import Seconds

Way = tuple[int, int]


@dataclass
class Bridge:
    """One end, that of part `mine`. Mutable, private to one run.

    `crossed` counts the rounds of each message that are over, by key; `there` is what the other end said of these when
    the link was made, and `last` the round and tensor of what was sent last. `way` are the two processes between which
    it leads, this one first, `times` how often that has changed; `breaks` is told of a process that is gone.
    """

    mine: int
    other: int
    breaks: Callable[[int], None]
    way: Way = (-1, -1)
    group: Any = None
    times: int = 0
    crossed: dict[str, int] = field(default_factory=dict)
    there: Mapping[str, int] | None = None
    last: dict[str, tuple[int, torch.Tensor]] = field(default_factory=dict)
    spent: list[Any] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def start(self, act: str, tensor: torch.Tensor, key: str, round: int) -> Crossing:
        """Start to `send` or to `recv`."""
        message = Crossing(self, act, tensor, key, round)
        message.begin()
        return message

    def turn(self, way: Way) -> dict[str, int]:
        """It will lead another way; what has crossed so far. Nothing crosses until it is open."""
        with self.changed:
            self._close()
            self.way, self.there = way, None
            return dict(self.crossed)

    def hear(self, way: Way, there: Mapping[str, int]) -> None:
        """What the other end of this way has."""
        with self.changed:
            if way == self.way:
                self.there = there
                self.changed.notify_all()

    def open(self, way: Way, group: Any, timeout: Seconds) -> None:
        """It leads there by the link `group`: send once more what the other end has not, and go on."""
        with self.changed:
            if way != self.way or self.there is None:
                return
            lacks = [key for key, (round, _) in self.last.items() if self.there.get(key, round + 1) <= round]
            again = [Crossing(self, "send", self.last[key][1], key, self.last[key][0]) for key in lacks]
            self.group = group
            self.changed.notify_all()
        for message in again:
            message.block(timeout)

    def lose(self, times: int) -> None:
        """The process at the other end is gone."""
        with self.changed:
            if times != self.times:
                return
            self._close()
        self.breaks(self.way[1])

    def _close(self) -> None:
        if self.group is not None:
            self.spent.append(self.group)  # messages on their way may still ask it
        self.group, self.times = None, self.times + 1


@dataclass
class Crossing(Unasked):
    """A message over a bridge: begun again whenever that leads another way, unless the other end has it."""

    bridge: Bridge
    act: str
    tensor: torch.Tensor
    key: str
    round: int
    work: Any = None
    times: int = -1
    done: bool = False

    def begin(self) -> None:
        """Start it on the link that there is."""
        with self.bridge.changed:
            group, self.times, self.work = self.bridge.group, self.bridge.times, None
        if group is None or self._has():
            return
        try:
            place = int(self.bridge.mine < self.bridge.other)
            self.work = getattr(group, self.act)([self.tensor], place, tag_of(self.key))
        except RuntimeError:
            self.bridge.lose(self.times)

    def block(self, timeout: Seconds) -> bool:
        until = time.monotonic() + timeout
        while not self._over():
            left = until - time.monotonic()
            if self.work is None or self.times != self.bridge.times:
                with self.bridge.changed:
                    if not self.bridge.changed.wait_for(lambda: self.bridge.group is not None, left):
                        return False
                self.begin()
                continue
            try:
                self.work.wait(timedelta(seconds=left))
            except RuntimeError:
                if time.monotonic() >= until:
                    return False
                self.bridge.lose(self.times)
            else:
                self._crosses()
        return True

    def _crosses(self) -> None:
        """It is over, if the bridge leads where it led; else the other end did not count it, or brings it again."""
        with self.bridge.changed:
            if self.times == self.bridge.times:
                self._counts()

    def _over(self) -> bool:
        with self.bridge.changed:
            if not self.done and self._has():
                self._counts()
            return self.done

    def _has(self) -> bool:
        """Whether the other end has what this would send."""
        there = self.bridge.there or {}
        return self.act == "send" and there.get(self.key, 0) > self.round

    def _counts(self) -> None:
        self.done = True
        self.bridge.crossed[self.key] = max(self.bridge.crossed.get(self.key, 0), self.round + 1)
        if self.act == "send":
            self.bridge.last[self.key] = self.round, self.tensor

    def __str__(self) -> str:
        return f"a message to or from rank {self.bridge.other}"
