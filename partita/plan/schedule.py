"""In which order a rank's forward and backward passes go, and which weights they read."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Order(StrEnum):
    SEQUENTIAL = "sequential"
    FILL_DRAIN = "fill_drain"
    ONE_F_ONE_B = "1f1b"
    INTERLEAVED = "interleaved"
    ZERO_BUBBLE = "zero_bubble"
    BIDIRECTIONAL = "bidirectional"
    MESSAGE = "message"


class Versions(StrEnum):
    """Which weights a backward pass reads: the newest, its forward's, the last but one, its input's, predicted ones."""

    LATEST = "latest"
    STASH = "stash"
    DOUBLE = "double"
    VERTICAL = "vertical"
    PREDICT = "predict"


@dataclass(frozen=True, slots=True)
class Schedule:
    """`microbatches` a minibatch; `chunks` stages a rank (virtual stages); `flush` drains the pipeline every step;
    `in_flight` bounds the instances between first forward and last backward (0: what the order implies);
    `update_every` microbatches an update where there is no flush."""

    order: Order = Order.SEQUENTIAL
    microbatches: int = 1
    chunks: int = 1
    flush: bool = True
    versions: Versions = Versions.LATEST
    in_flight: int = 0
    update_every: int = 0
