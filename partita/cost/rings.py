"""Bytes that each rank sends in a collective by a ring."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from partita.program.instruction import Collective
from partita.program.program import Program
from partita.program.space import Kind
from partita.units import Bytes
from partita.wire.schedule import even_edges


def bytes_sent(kind: Kind, elements: int, item: int, ranks: int, edges: Sequence[int] = ()) -> list[Bytes]:
    """Payload that each of `ranks` members sends to the next one, for a vector of `elements` elements of `item` bytes.

    Rank i of a reduce-scatter sends all parts but its own, of an all-gather all but its successor's: (p - 1) / p n
    bytes each if the parts between `edges` (none: even ones) are equal (Rajbhandari et al., SC 2020). An all-reduce
    does both, with parts that are as equal as possible: 2n - size(c_{i+1}) - size(c_{i+2}) (Patarasuk & Yuan 2009;
    CO-02).
    """
    left = {Kind.REDUCE_SCATTER: (0,), Kind.ALL_GATHER: (1,)}.get(kind, (1, 2))
    own = edges if len(left) == 1 else ()
    parts = np.diff(np.array(own or even_edges(elements, ranks), np.int64))
    others = np.array([elements - np.roll(parts, -k) for k in left])
    sent: list[Bytes] = (item * others.sum(0)).tolist()
    return sent


def collective_bytes(program: Program, act: Collective, ranks: int) -> list[Bytes]:
    """Payload that each of the `ranks` members of an instruction's group sends."""
    elements, item = program.extent(act, ranks)
    return bytes_sent(act.kind, elements, item, ranks, program.edges(act))
