"""The tensors that instructions work on, and the kinds of collectives."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class Space(StrEnum):
    """Which tensor of a bucket an act works on.

    GRADIENT, PARAMETER     what backward made, what forward reads
    INBOX, OUTBOX           what came from one peer, what one peer is to get
    VALUE, CODED            no bucket: a parcel of values of an environment, a coding of a bucket
    ANCHOR                  kept; starts as the weights: those last agreed on, a centre, or a sum
    SHARED                  kept; starts as the weights: one tensor for all ranks of a machine
    SERVED                  kept; starts as the weights: a server's, where its rank's own worker reads others
    SAID, HEARD             kept; start as zeros: what codings of differences have said, and the sum of that over all
    VELOCITY .. REST        kept; start as zeros, for whatever a method keeps from round to round
    """

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
    SAID = "said"
    HEARD = "heard"


KEPT: Final = (
    Space.ANCHOR, Space.VELOCITY, Space.DELTA, Space.DUAL, Space.RESIDUAL, Space.BASIS, Space.REST, Space.SHARED,
    Space.SERVED, Space.SAID, Space.HEARD,
)  # fmt: skip


class Kind(StrEnum):
    """What a collective does; BROADCAST sends the first rank's tensor to all of its group."""

    ALL_REDUCE = "all_reduce"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_GATHER = "all_gather"
    BROADCAST = "broadcast"
