"""Reduce-scatter and all-gather as messages around a ring, for backends that lack the one (gloo all-reduces instead,
which moves twice the bytes) and want equal parts for the other.

reduce-scatter of 3   0 -2-> 1   1 -0-> 2   2 -1-> 0      each part starts at the rank after its owner and is summed on
                      0 -1-> 1   1 -2-> 2   2 -0-> 0      its way to it: the same bits whatever the timing
all-gather of 3       0 -0-> 1   1 -1-> 2   2 -2-> 0
                      0 -2-> 1   1 -0-> 2   2 -1-> 0

A part travels in two halves: while one is summed, the other is under way.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import pairwise
from typing import Any

import torch

from partita.program.instruction import Kind
from partita.units import Seconds

HALVES = 2
Message = Callable[[torch.Tensor, int, int], Any]


@dataclass
class Ring:
    """One rank's part in a ring over the elements of `flat`, of which the k-th rank of `group` owns those from edges[k]
    to edges[k + 1]; `send` and `receive` start a message (tensor, peer, number) and return what is waited for."""

    kind: Kind
    flat: torch.Tensor
    edges: tuple[int, ...]
    group: tuple[int, ...]
    rank: int
    send: Message
    receive: Message
    waiter: threading.Thread | None = None
    failure: BaseException | None = None
    done: bool = False
    sent: list[Any] = field(default_factory=list)
    rooms: list[torch.Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Ask for what comes first and send what goes first, so that nobody waits for this rank to be waited for."""
        place, size = self.group.index(self.rank), len(self.group)
        last = place - 1 if self.kind is Kind.REDUCE_SCATTER else place
        self.after, self.before = self.group[(place + 1) % size], self.group[place - 1]
        self.outgoing = [(last - step) % size for step in range(size - 1)]
        self.incoming = [(last - 1 - step) % size for step in range(size - 1)]
        self.steps = self._reducing() if self.kind is Kind.REDUCE_SCATTER else self._gathering()
        next(self.steps)

    def ready(self) -> bool:
        if self.waiter is None:
            self.waiter = threading.Thread(target=self._in_thread, daemon=True)
            self.waiter.start()
        if self.failure is not None:
            raise self.failure
        return not self.waiter.is_alive()

    def block(self, timeout: Seconds) -> bool:
        if self.waiter is not None:
            self.waiter.join(timeout)
            return self.ready()
        self._finish(timeout)
        return True

    def _in_thread(self) -> None:
        try:
            with torch.no_grad():
                self._finish(None)
        except BaseException as error:
            self.failure = error

    def _finish(self, timeout: Seconds | None) -> None:
        end = None if timeout is None else time.monotonic() + timeout
        for work in self.steps:
            _wait(work, end)
        for work in self.sent:
            _wait(work, end)

    def halves(self, part: int) -> list[torch.Tensor]:
        start, stop = self.edges[part], self.edges[part + 1]
        middle = [start + (stop - start) * h // HALVES for h in range(HALVES + 1)]
        return [self.flat[a:b] for a, b in pairwise(middle) if b > a]

    def _gathering(self) -> Iterator[Any]:
        """All is received at once, each part in its place, and handed on as it comes."""
        arriving = [
            [self.receive(half, self.before, step * HALVES + h) for h, half in enumerate(self.halves(part))]
            for step, part in enumerate(self.incoming)
        ]
        self._begin()
        yield None
        for step, works in enumerate(arriving):
            for h, work in enumerate(works):
                yield work
                self._hand_on(step, h)

    def _reducing(self) -> Iterator[Any]:
        """A partial sum comes into a room of its own, is added to what is here, and the sum goes on."""
        widest = max(self.incoming, key=lambda part: self.edges[part + 1] - self.edges[part])
        self.rooms += [torch.empty_like(half) for half in self.halves(widest)]
        arriving = [self._ask(0, h) for h in range(HALVES)]
        self._begin()
        yield None
        for step, part in enumerate(self.incoming):
            halves = self.halves(part)
            for h in range(HALVES):
                if h < len(halves):
                    work, came = arriving[h]
                    yield work
                    halves[h] += came
                    self._hand_on(step, h)
                arriving[h] = self._ask(step + 1, h)

    def _ask(self, step: int, h: int) -> tuple[Any, torch.Tensor]:
        """Start receiving half `h` of a step's part, if it has one."""
        halves = self.halves(self.incoming[step]) if step < len(self.incoming) else []
        if h >= len(halves):
            return None, torch.empty(0)
        room = self.rooms[h][: len(halves[h])]
        return self.receive(room, self.before, step * HALVES + h), room

    def _begin(self) -> None:
        for h, half in enumerate(self.halves(self.outgoing[0])):
            self.sent.append(self.send(half, self.after, h))

    def _hand_on(self, step: int, h: int) -> None:
        if step + 1 < len(self.outgoing):
            half = self.halves(self.incoming[step])[h]
            self.sent.append(self.send(half, self.after, (step + 1) * HALVES + h))


def _wait(work: Any, end: Seconds | None) -> None:
    if end is None:
        work.wait()
    else:
        work.wait(timedelta(seconds=max(end - time.monotonic(), 1e-3)))
