"""The room that a rank has for codings from its first round on: a row for each message that it holds by itself.

coding of a bucket    | rank 0's | own | rank 2's |    those that it decodes one by one; one row where they are summed
coding of parts       | own, for rank 0 | for rank 1 | for rank 2 |    and a row for each: of its own part, by others
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final

from partita.graph.tensor import ITEMSIZE
from partita.program.instruction import Collective, Decode, Encode, Receive, Send
from partita.program.layout import Coding
from partita.program.program import Program, Role
from partita.program.space import Space
from partita.units import Bytes
from partita.wire.codec import room

LENGTH: Final = 8  # bytes in front of a message of varying length, that say how many follow


def row_length(coding: Coding) -> int:
    """How many numbers of its dtype a message of the coding has room for."""
    return padded(coding.most + LENGTH) if coding.most else coding.elements


def part_lengths(coding: Coding, item: Bytes) -> tuple[int, ...]:
    """How many numbers of its dtype a message of each part has room for, where the bucket's are of `item` bytes; 0
    where nothing is in a part."""
    if not coding.most:
        return coding.parts
    counts = (stop - start for start, stop in pairwise(coding.edges))
    return tuple(room(coding.codec, count, item) + LENGTH if count else 0 for count in counts)


def padded(length: int) -> int:
    """Rows begin where numbers of eight bytes may."""
    return -(-length // 8) * 8


def rows_bytes(program: Program, role: Role) -> Bytes:
    """Bytes of all such rows on a rank of the role, where parts differ on the one with the largest."""
    found, names = 0, dict[str, None]()
    for act in (i.act for i in role.instructions):
        if isinstance(act, Encode | Decode):
            names[act.coding] = None
        elif isinstance(act, Collective | Send | Receive) and act.space is Space.CODED:
            names[act.bucket] = None
    for coding in map(program.coding.__getitem__, names):
        sources, numbers = len(role.decoded.get(coding.name, ())), row_length(coding)
        if coding.edges:
            rows = [padded(n) for n in part_lengths(coding, ITEMSIZE[program.bucket[coding.bucket].dtype])]
            found += coding.slots * (sum(rows) + sources * max(rows)) * ITEMSIZE[coding.dtype]
        else:
            found += coding.slots * max(sources, 1) * numbers * ITEMSIZE[coding.dtype]
    return found
