"""Bytes that a collective makes each rank send: rings, in which a part goes from rank to rank."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from partita.program.instruction import Collective, Kind
from partita.program.program import Bucket, Program
from partita.units import Bytes
from partita.wire.schedule import edges_of


def ring_bytes(elements: int, item: int, ranks: int) -> list[Bytes]:
    """Payload that each member of a ring all-reduce sends to the next: 2n - size(c_{i+1}) - size(c_{i+2})
    (Patarasuk & Yuan 2009; CO-02)."""
    if ranks == 1:
        return [0]
    share, rest = divmod(elements, ranks)
    parts = [share + (i < rest) for i in range(ranks)]
    return [item * (2 * elements - parts[(i + 1) % ranks] - parts[(i + 2) % ranks]) for i in range(ranks)]


def bytes_sent(kind: Kind, elements: int, item: int, ranks: int, edges: Sequence[int] = ()) -> list[Bytes]:
    """Payload that each member sends to the next. To scatter sums, everything but its own part; to gather, everything
    but its successor's: (p-1)/p n each way, together an all-reduce (Rajbhandari et al., SC 2020)."""
    if kind not in (Kind.REDUCE_SCATTER, Kind.ALL_GATHER):
        return ring_bytes(elements, item, ranks)
    parts = [b - a for a, b in pairwise(edges)]
    ahead = kind is Kind.ALL_GATHER
    return [item * (elements - parts[(i + ahead) % ranks]) for i in range(ranks)]


def collective_bytes(program: Program, act: Collective, ranks: int) -> list[Bytes]:
    """The same of an instruction among `ranks` ranks."""
    elements, item = program.extent(act, ranks)
    cargo = program.cargo(act)
    edges = cargo.shares.edges if isinstance(cargo, Bucket) and cargo.shares else edges_of(elements, ranks)
    return bytes_sent(act.kind, elements, item, ranks, edges)
