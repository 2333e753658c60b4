"""The allocations of a rank, recorded in a run of their own, and mapped onto the clock of another run."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from partita.cost.memory_curve import MOMENTS, highest
from partita.program.timeline import Span
from partita.runtime.device import CPU, clear_workspaces
from partita.units import Bytes, Seconds


@dataclass(frozen=True)
class MemoryTrace:
    """The `peak` of live bytes on a rank; its `curve` as (seconds, bytes); the `spans` of the leading lane in these
    rounds on the same clock. On an accelerator there is no curve, and `held` is what its caching allocator reserved."""

    peak: Bytes
    curve: tuple[tuple[Seconds, Bytes], ...]
    spans: tuple[Span, ...]
    held: Bytes = 0

    def message(self) -> dict[str, Any]:
        """The trace as plain data."""
        spans = [asdict(span) for span in self.spans]
        return {"peak": self.peak, "curve": self.curve, "spans": spans, "held": self.held}

    def laid_on(self, spans: Sequence[Span]) -> tuple[tuple[Seconds, Bytes], ...]:
        """The curve on the clock of a timed run's `spans`, of which the last rounds count: mapped instruction by
        instruction of the leading lane."""
        mine, theirs = (_edges(each, self.spans) for each in (self.spans, spans))
        known = [place for place in mine if place in theirs]
        if not known:
            return ()
        here, there = ([edge for place in known for edge in side[place]] for side in (mine, theirs))
        at = [moment for moment, _ in self.curve]
        moments = np.interp(at, here, np.maximum.accumulate(there)).tolist()
        return tuple((moment, size) for moment, (_, size) in zip(moments, self.curve, strict=True))


def read_memory_trace(message: dict[str, Any]) -> MemoryTrace:
    """The MemoryTrace that `MemoryTrace.message` wrote."""
    spans = tuple(Span(**span) for span in message["spans"])
    return MemoryTrace(message["peak"], tuple(map(tuple, message["curve"])), spans, message["held"])


def _edges(spans: Sequence[Span], like: Sequence[Span]) -> dict[tuple[int, str], tuple[Seconds, Seconds]]:
    """(rounds from the end, name) -> (start, end) of one rank's leading lane, by start."""
    mine = sorted((s for s in spans if (s.rank, s.lane) == (like[0].rank, like[0].lane)), key=lambda s: s.start)
    last = max((span.round for span in spans), default=0)
    return {(last - s.round, s.name): (s.start, s.end) for s in mine}


class Profiled:
    """The allocations of this thread as torch's profiler records them, from `steady` on."""

    def __init__(self, seen: profile) -> None:
        self.seen, self.since, self.now = seen, 0, 0.0

    def steady(self) -> None:
        """The steady state begins here."""
        self.since, self.now = time.time_ns(), time.perf_counter()

    def watch(self, spans: Sequence[Span]) -> MemoryTrace:
        """The trace, once the profile has ended."""
        return watched(self.seen, self.since, self.now, spans)


class Counted:
    """The peak that an accelerator's caching allocator counts by itself."""

    def __init__(self, device: str) -> None:
        self.device = device
        clear_workspaces()  # which micro-benchmarks left
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)

    def steady(self) -> None:
        """The steady state begins here."""
        torch.cuda.reset_peak_memory_stats(self.device)

    def watch(self, spans: Sequence[Span]) -> MemoryTrace:
        """The trace."""
        peak, held = torch.cuda.max_memory_allocated(self.device), torch.cuda.max_memory_reserved(self.device)
        return MemoryTrace(peak, (), tuple(spans), held)


@contextmanager
def allocations(device: str) -> Iterator[Profiled | Counted]:
    """A context that records allocations."""
    if device != CPU:
        yield Counted(device)
        return
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        yield Profiled(seen)


def watched(seen: profile, since: int, now: Seconds, spans: Sequence[Span]) -> MemoryTrace:
    """The trace of all live bytes under a profile after the time `since` in nanoseconds, which is `now` on the spans'
    clock."""
    profiler: Any = seen.profiler
    events = [(e.start_ns(), e.nbytes()) for e in profiler.kineto_results.events() if e.name() == "[memory]"]
    moments, changes = np.array(sorted(events), np.int64).reshape(-1, 2).T
    live = np.cumsum(changes)
    peak = int(live[max(int(np.searchsorted(moments, since)) - 1, 0) :].max(initial=0))  # what is there by then as well
    seconds = (moments - since) * 1e-9 + now
    first, last = min((s.start for s in spans), default=now), max((s.end for s in spans), default=now)
    inside = (first <= seconds) & (seconds <= last)
    kept = highest(live[inside], MOMENTS)
    curve = tuple(zip(seconds[inside][kept].tolist(), live[inside][kept].tolist(), strict=True))
    return MemoryTrace(peak, curve, tuple(spans))
