"""Bytes that a collective makes each rank send: rings, in which a part goes from rank to rank."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from partita.program.instruction import Collective, Kind
from partita.program.program import Program
from partita.units import Bytes
from partita.wire.schedule import edges_of


def bytes_sent(kind: Kind, elements: int, item: int, ranks: int, edges: Sequence[int] = ()) -> list[Bytes]:
    """Payload that each member of a ring sends to the next. To scatter sums, everything but its own part; to gather,
    everything but its successor's: (p-1)/p n each way, of the parts between `edges` (Rajbhandari et al., SC 2020). An
    all-reduce is both, of parts as equal as it goes: 2n - size(c_{i+1}) - size(c_{i+2}) (Patarasuk & Yuan 2009; CO-02).
    """
    left = {Kind.REDUCE_SCATTER: (0,), Kind.ALL_GATHER: (1,)}.get(kind, (1, 2))
    parts = [b - a for a, b in pairwise(edges if len(left) == 1 else edges_of(elements, ranks))]
    return [item * sum(elements - parts[(i + k) % ranks] for k in left) for i in range(ranks)]


def collective_bytes(program: Program, act: Collective, ranks: int) -> list[Bytes]:
    """The same of an instruction among `ranks` ranks."""
    elements, item = program.extent(act, ranks)
    return bytes_sent(act.kind, elements, item, ranks, program.edges(act) or edges_of(elements, ranks))
