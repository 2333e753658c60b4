"""What the hops of a schedule send, added up."""

from __future__ import annotations

from partita.units import Bytes
from partita.wire.schedule import Hop, Schedule, even_edges


def hops_of(schedule: Schedule) -> tuple[Hop, ...]:
    """All hops, in the order of their steps."""
    return tuple(hop for step in schedule.steps for hop in step)


def elements_of(schedule: Schedule, hop: Hop, elements: int) -> int:
    """How many of a vector's `elements` a hop sends."""
    edges = even_edges(elements, schedule.parts)
    return edges[hop.stop] - edges[hop.start]


def bytes_sent(schedule: Schedule, elements: int, item: int) -> list[Bytes]:
    """Bytes that each rank sends, for a vector of `elements` elements of `item` bytes."""
    found = [0] * schedule.ranks
    for hop in hops_of(schedule):
        found[hop.source] += elements_of(schedule, hop, elements) * item
    return found
