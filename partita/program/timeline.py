"""A Timeline: what happened, or is predicted to happen, as spans of instructions on ranks and lanes, memory and
bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Final

from partita.program.ledger import Merge
from partita.units import Bytes, Seconds, show_seconds

# What live bytes are for: buckets are the gradients' copies that travel, messages what is under way from or to others.
PURPOSES: Final = ("parameters", "optimizer", "buckets", "gradients", "activations", "messages", "workspace")


@dataclass(frozen=True, slots=True)
class Span:
    """Instance `round` of instruction `name` on `rank`, from `start` to `end` seconds."""

    rank: int
    lane: str
    name: str
    kind: str
    round: int
    start: Seconds
    end: Seconds


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Seconds of one step on the compute lane of the first worker, by what they were spent on or waited for."""

    forward: Seconds = 0.0
    backward: Seconds = 0.0
    optimizer: Seconds = 0.0
    codec: Seconds = 0.0
    data: Seconds = 0.0
    exposed_communication: Seconds = 0.0
    idle: Seconds = 0.0

    def times(self, factor: float) -> Breakdown:
        """That of a step which took so many times as long."""
        return Breakdown(*(factor * seconds for seconds in astuple(self)))


@dataclass(frozen=True)
class Timeline:
    """What a plan's steps took; `origin` is 'simulated' or 'measured'.

    `step_seconds` is the steady state, between `low` and `high` where there are `n` repeats. One number for each rank:
    `memory` (peak bytes of live tensors), `resident` (bytes of the process), `wire_sent` (payload bytes of a step),
    `cores` (core-seconds of a step). `traffic` is the payload of a step as (source rank, target rank, bytes).

    `memory_over_time` has each rank's live bytes as (seconds, bytes) on the clock of the spans, the maximum of each
    short interval; `memory_parts`, where known, divides each of these by purpose, in the order of PURPOSES. `ledger`
    has every merge of a server that does not wait for all workers. `dtype` is that of the weights it computes with.
    """

    plan: str
    origin: str
    step_seconds: Seconds
    batch: int
    spans: Sequence[Span] = ()
    memory: tuple[Bytes, ...] = ()
    resident: tuple[Bytes, ...] = ()
    wire_sent: tuple[Bytes, ...] = ()
    cores: tuple[Seconds, ...] = ()
    breakdown: Breakdown = Breakdown()
    n: int = 1
    low: Seconds = 0.0
    high: Seconds = 0.0
    traffic: tuple[tuple[int, int, Bytes], ...] = ()
    memory_over_time: tuple[tuple[tuple[Seconds, Bytes], ...], ...] = ()
    memory_parts: tuple[tuple[tuple[Bytes, ...], ...], ...] = ()
    ledger: tuple[Merge, ...] = ()
    dtype: str = ""

    def __repr__(self) -> str:
        return f"<Timeline of {self.plan}, {self.origin}: {show_seconds(self.step_seconds)} a step>"

    @property
    def ranks(self) -> int:
        """How many devices the plan occupies; 0 where that is not known."""
        return len(self.memory or self.wire_sent)
