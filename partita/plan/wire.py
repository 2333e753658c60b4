"""What is sent for an agreement: algorithm, buckets, order and codecs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from partita.units import Bytes


class Priority(StrEnum):
    """Which ready message goes first: as backward made it, as forward needs it, TicTac's two, within a credit."""

    FIFO = "fifo"
    PRIORITY = "priority"
    TIC = "tic"
    TAC = "tac"
    CREDIT = "credit"


PLACES: Final = ("end", "hop", "server")


@dataclass(frozen=True, slots=True)
class Codec:
    """A way to send less. `where` of PLACES it is applied: 'end' (before and after a collective), 'hop' (each message
    in it) or 'server' (both directions); `settings` are its own numbers, such as (("ratio", 0.001),)."""

    name: str
    where: str = "end"
    error_feedback: bool = False
    settings: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Wire:
    """`collective`: 'backend' (gloo's or NCCL's own) or an algorithm of the wire room, `by_size` those of smaller
    messages, each (up to so many bytes, algorithm), smallest first; `bucket_bytes` closes a bucket
    (0: one a tensor), `first_bucket_bytes` closes the first one sooner; `slice_bytes` cuts messages (0: whole);
    `credit_bytes` bounds what is in flight; `negotiate` agrees on readiness before sending (Horovod)."""

    collective: str = "backend"
    bucket_bytes: Bytes = 25 * 2**20
    first_bucket_bytes: Bytes = 2**20
    order: Priority = Priority.FIFO
    slice_bytes: Bytes = 0
    credit_bytes: Bytes = 0
    negotiate: bool = False
    codecs: tuple[Codec, ...] = ()
    by_size: tuple[tuple[Bytes, str], ...] = ()
