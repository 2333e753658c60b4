"""How an agreement sends its payload: algorithm, buckets, order and codecs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from partita.units import Bytes


class Priority(StrEnum):
    """Which ready message is sent first: in the order backward made them (fifo); in the order forward needs them
    (priority); TicTac's orders (tic, tac); by need, within a credit (credit)."""

    FIFO = "fifo"
    PRIORITY = "priority"
    TIC = "tic"
    TAC = "tac"
    CREDIT = "credit"


PLACES: Final = ("end", "hop", "server")


@dataclass(frozen=True, slots=True)
class Codec:
    """A compression of what is sent. `where`, one of PLACES: at the ends of a collective, before and after it (end); at
    each of its messages (hop); or in both directions of a server (server). `settings` are the codec's own numbers, such
    as (("ratio", 0.001),).

    With `error_feedback` a sender adds what its messages have not said yet. With a `difference` a above 0, it encodes
    how what it has differs from h_i, h_i moves by a times what the message says, and all that hear keep the sum of all
    h_i, to which they add what is said (EF21 of Richtarik et al. 2021: a = 1; DIANA of Mishchenko et al. 2019)."""

    name: str
    where: str = "end"
    error_feedback: bool = False
    settings: tuple[tuple[str, float], ...] = ()
    difference: float = 0.0


@dataclass(frozen=True, slots=True)
class Wire:
    """`collective` is 'backend' (gloo's or NCCL's own) or an algorithm of the wire room; `by_size` overrides it for
    smaller messages: (up to so many bytes, algorithm), smallest first.

    A bucket is closed at `bucket_bytes` (0: one a tensor), the first one at `first_bucket_bytes`. Messages go by
    `order`, in slices of `slice_bytes` (0: whole), with at most `credit_bytes` in flight (0: no limit). With
    `negotiate`, ranks agree on readiness before they send (Horovod).
    """

    collective: str = "backend"
    bucket_bytes: Bytes = 25 * 2**20
    first_bucket_bytes: Bytes = 2**20
    order: Priority = Priority.FIFO
    slice_bytes: Bytes = 0
    credit_bytes: Bytes = 0
    negotiate: bool = False
    codecs: tuple[Codec, ...] = ()
    by_size: tuple[tuple[Bytes, str], ...] = ()

    @classmethod
    def even(
        cls, size: Bytes, order: Priority = Priority.FIFO, codecs: tuple[Codec, ...] = (), collective: str = "backend"
    ) -> Wire:  # fmt: skip
        """Buckets, the first one too, and slices of `size` bytes."""
        return cls(collective, size, size, order, slice_bytes=size, codecs=codecs)
