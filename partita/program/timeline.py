"""What happened, or what is predicted to happen: spans of instructions on ranks and lanes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from partita.program.ledger import Merge
from partita.units import Bytes, Seconds

# What live bytes are for: buckets are the gradients' copies that travel, messages what is under way from or to others.
PARTS: Final = ("parameters", "optimizer", "buckets", "gradients", "activations", "messages", "workspace")


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
    """Seconds of one step of the first worker's computing lane, by what they were spent on or waited for."""

    forward: Seconds = 0.0
    backward: Seconds = 0.0
    optimizer: Seconds = 0.0
    codec: Seconds = 0.0
    data: Seconds = 0.0
    exposed_communication: Seconds = 0.0
    idle: Seconds = 0.0


@dataclass(frozen=True)
class Timeline:
    """What a plan's steps took; `origin` is 'simulated' or 'measured'.

    `step_seconds` is the steady state; `low` and `high` bound it where there are repeats (`n`). `memory` and
    `wire_sent` are bytes, one number a rank: peak of live tensors, payload of a step; `cores` core-seconds of a step.
    `traffic` is a step's payload as (source rank, target rank, bytes). `memory_over_time` holds each rank's live bytes
    as (seconds, bytes) on the clock of the spans, the fullest moment of each short stretch, and `memory_parts`, where
    it is known, what they are for at each of these moments, in the order of PARTS. `ledger` has every merge of a server
    that goes ahead of its workers.
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
