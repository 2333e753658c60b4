"""What messages of a collective that goes hop by hop take on a rank while it goes on.

as it is      | what came last |                            added, or put in its place, before the next is asked for
encoded       | a message of each part | what came last |   sums that travel, and then results, which are handed on
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from itertools import pairwise

from partita.program.instruction import Collective
from partita.program.program import Program
from partita.program.space import Kind, Space
from partita.units import Bytes
from partita.wire.algorithms import by_hops, by_messages, course
from partita.wire.codec import coded_size
from partita.wire.schedule import Schedule, even_edges, halved


def hop_bytes(program: Program, act: Collective, rank: int) -> Bytes:
    """The most on any member of the group of `rank`; 0 where messages land where they stay. Streams of chosen entries
    are no tensors."""
    scatters = act.kind is Kind.REDUCE_SCATTER and act.space is not Space.CODED
    if not (scatters or (act.kind is Kind.ALL_REDUCE and by_messages(act))):
        return 0
    ranks = len(next(group for group in act.groups if rank in group))
    elements, item = program.extent(act, ranks)
    edges, widest = program.edges(act) or even_edges(elements, ranks), 1  # of a plain ring
    if by_hops(act):
        schedule, edges = course(program, act, ranks)
        if schedule.sparse:
            schedule = halved(schedule)[1] if schedule.sparse.whole else Schedule("", ranks, 1, ())
            edges = even_edges(elements, schedule.parts)
        widest = widest_step(schedule)
    if not widest:
        return 0
    lengths = [stop - start for start, stop in pairwise(edges)]
    if act.codec is None:
        return widest * max(lengths) * item
    sizes = [coded_size(act.codec, length, item) for length in lengths]
    return sum(sizes) + widest * max(sizes)


@lru_cache(256)
def widest_step(schedule: Schedule) -> int:
    """The most parts that come to a rank in one step."""
    found = 0
    for step in schedule.steps:
        coming = Counter[int]()
        for hop in step:
            coming[hop.target] += hop.stop - hop.start
        found = max(found, *coming.values())
    return found
