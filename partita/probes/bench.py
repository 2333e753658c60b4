"""How calls are timed, and by which clock.

A processor    core-seconds of the thread that makes a call.
A card         seconds of its stream, between events; and, in a second pass, core-seconds of the thread that launches. A
               step takes the larger of the two sums, since the host may run far ahead of the card.

    host     sleep  e0 launch e1 launch e2 launch e3
    stream   zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz|kernel|kernel|kernel|   launched while it sleeps, so no gap is the host's
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from typing import Any, Final

import torch

from partita.runtime.device import CPU
from partita.units import Bytes, Seconds

Calls = Sequence[Callable[[], Any]]
CLOCK: Final = 2.0e9  # ticks a second of a card that is busy, about
SPARE: Final[Seconds] = 1e-3  # that it sleeps longer than launching is thought to take
CHUNK: Final = 64  # calls that are launched in one sleep: no queue is full of them
TRIES: Final = 4
LONGEST: Final[Seconds] = 1e-3  # that launching a call takes; one that waits for the card takes as long as it sleeps


@dataclass(frozen=True, slots=True)
class Bench:
    """How calls on `device` are timed: `each` times a list of calls (None: by the thread's clock, one by one). So many
    operators (`stretch`) are timed behind one another; inputs of one by itself take turns so that none is in a cache,
    `ring` bytes of them, `held` bytes for all calls together. Before a call that is timed by itself, what is `ahead` of
    it in a step is carried out, or else `between` bytes are passed over; so they are before a stretch. Behind that the
    thread has a `rest` of so many seconds. Passes are over a model's own tensors, `most` elements of them together."""

    device: str = CPU
    each: Callable[[Calls], list[Seconds]] | None = None
    stretch: int = 128
    ring: Bytes = 0
    held: Bytes = 2**30
    between: Bytes = 2**24
    rest: Seconds = 0.0
    ahead: Callable[[], Any] | None = None
    most: int = 2**23


HOST: Final = Bench()


def benches_of(device: str) -> tuple[Bench, ...]:
    """The benches of a device: one for the time of calls, and on a card another one for the time of launching them."""
    if device == CPU:
        return (HOST,)
    timer = AcceleratorTimer(device)
    own = Bench(device, timer.each, stretch=1, ring=2**28, held=2**33, between=2**27, most=2**26)
    return own, replace(own, each=timer.launches, ring=2**24, held=HOST.held)


class AcceleratorTimer:
    """A card's two clocks. `pace` is the time that launching a call has taken, `gap` the time between two events with
    nothing in between."""

    def __init__(self, device: str) -> None:
        self.device, self.pace, self.gap = device, 50e-6, 0.0
        self.gap = median(self._chunk([_nothing] * CHUNK))

    def each(self, calls: Calls) -> list[Seconds]:
        """Seconds of each call in the card's stream."""
        parts = [self._chunk(calls[at : at + CHUNK]) for at in range(0, len(calls), CHUNK)]
        return [max(gap - self.gap, 0.0) for part in parts for gap in part]

    def launches(self, calls: Calls) -> list[Seconds]:
        """Core-seconds of this thread for launching each call: behind others, as in a step, or with an empty queue
        before it, where one that waits for the card does not wait for these."""
        return [min(both) for both in zip(self._launched(calls, CHUNK), self._launched(calls, 1), strict=True)]

    def _launched(self, calls: Calls, row: int) -> list[Seconds]:
        """The same where so many follow one another."""
        found = []
        for at, call in enumerate(calls):
            if at % row == 0:
                torch.cuda.synchronize(self.device)
            before = time.thread_time()
            call()
            found.append(time.thread_time() - before)
        torch.cuda.synchronize(self.device)
        return found

    def _chunk(self, calls: Calls) -> list[Seconds]:
        event: Any = torch.cuda.Event
        sleep: Any = torch.cuda._sleep
        gaps: list[Seconds] = []
        for _ in range(TRIES):
            held = 1.5 * self.pace * len(calls) + SPARE
            marks = [event(enable_timing=True) for _ in range(len(calls) + 1)]
            torch.cuda.synchronize(self.device)
            sleep(int(held * CLOCK))
            begun = time.perf_counter()
            marks[0].record()
            for call, mark in zip(calls, marks[1:], strict=True):
                call()
                mark.record()
            spent = time.perf_counter() - begun
            torch.cuda.synchronize(self.device)
            gaps = [a.elapsed_time(b) * 1e-3 for a, b in pairwise(marks)]
            self.pace = min(spent / len(calls), LONGEST)
            if spent < held:  # it did not wake up too early
                break
        return gaps


def _nothing() -> None:
    """Launches nothing."""
