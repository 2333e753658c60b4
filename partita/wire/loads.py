"""What a schedule's hops ask of their two ranks: bytes, and numbers that are encoded, decoded and added."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from partita.plan.wire import Codec
from partita.units import Bytes
from partita.wire.codec import coded_size
from partita.wire.schedule import Schedule, edges_of


@dataclass(frozen=True, slots=True)
class Load:
    """A hop of step `step` as numbers: `size` bytes, of which the source encodes `encoded` numbers anew, the target
    decodes `decoded` and adds `added`."""

    step: int
    source: int
    target: int
    size: Bytes
    encoded: int
    decoded: int
    added: int


@lru_cache(512)
def loads_of(schedule: Schedule, elements: int, item: int, codec: Codec | None = None) -> tuple[Load, ...]:
    """Every hop that moves anything of a vector of `elements` numbers of `item` bytes. With a codec each part is
    encoded by itself: sums at every hop, a result once, by the rank that has it first."""
    edges = edges_of(elements, schedule.parts)
    final, found = set[tuple[int, int]](), []
    for number, step in enumerate(schedule.steps):
        handed = set[tuple[int, int]]()
        for hop in step:
            lengths = [edges[part + 1] - edges[part] for part in range(hop.start, hop.stop)]
            moved = sum(lengths)
            if not moved:
                continue
            parts = [(hop.source, part) for part in range(hop.start, hop.stop)]
            size = sum(coded_size(codec, n, item) for n in lengths) if codec else moved * item
            fresh = sum(n for part, n in zip(parts, lengths, strict=True) if hop.add or part not in final)
            if not hop.add:
                final.update(parts)
                handed.update((hop.target, part) for _, part in parts)
            own = (fresh, moved) if codec else (0, 0)
            found.append(Load(number, hop.source, hop.target, size, *own, moved if hop.add else 0))
        final |= handed
    return tuple(found)
