"""What instructions work on, and what collectives there are."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class Space(StrEnum):
    """Which of a bucket's tensors an act works on. `INBOX` holds what came from one peer, `OUTBOX` what one peer is to
    get; with `VALUE` a parcel of values of an environment is meant in place of a bucket, with `CODED` a coding. The
    others stay from round to round where a method needs them: `ANCHOR` begins as the weights (those agreed on last, a
    centre, a sum), as do `SHARED`, of which all ranks of a machine have the same tensor, and `SERVED`, what a server
    has beside the weights that its rank's own worker reads; the rest begin as zeros."""

    GRADIENT = "gradient"
    PARAMETER = "parameter"
    INBOX = "inbox"
    OUTBOX = "outbox"
    VALUE = "value"
    CODED = "coded"
    ANCHOR = "anchor"
    VELOCITY = "velocity"
    DELTA = "delta"
    DUAL = "dual"
    RESIDUAL = "residual"
    BASIS = "basis"
    REST = "rest"
    SHARED = "shared"
    SERVED = "served"


KEPT: Final = (
    Space.ANCHOR, Space.VELOCITY, Space.DELTA, Space.DUAL, Space.RESIDUAL, Space.BASIS, Space.REST, Space.SHARED,
    Space.SERVED,
)  # fmt: skip


class Kind(StrEnum):
    ALL_REDUCE = "all_reduce"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_GATHER = "all_gather"
    BROADCAST = "broadcast"
