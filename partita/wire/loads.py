"""The work of a schedule's hops: bytes sent, and elements that are encoded, decoded and added."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from partita.arrays import Flags, Ints
from partita.plan.wire import Codec
from partita.units import Bytes
from partita.wire.codec import coded_size
from partita.wire.interpreter import carried_out
from partita.wire.schedule import Hop, Schedule, even_edges, halved
from partita.wire.streams import HEAD, delta, expected_size, union


@dataclass(frozen=True, slots=True)
class HopLoad:
    """The work of one hop of step number `step`: `size` bytes in `messages` messages.

    The source encodes `encoded` elements; the target decodes `decoded`, adds `added`, and merges `merged` entries of a
    sparse stream into its own. Hops of one `strand` wait for each other alone.
    """

    step: int
    source: int
    target: int
    size: Bytes
    encoded: int
    decoded: int
    added: int
    merged: int = 0
    messages: int = 1
    strand: int = 0


@dataclass(frozen=True, eq=False)
class HopColumns:
    """Loads as columns, shape [hops]: one for each field, and whether the source has not encoded before, the target not
    decoded, and either of them not moved anything."""

    source: Ints
    target: Ints
    size: Ints
    encoded: Ints
    decoded: Ints
    added: Ints
    merged: Ints
    messages: Ints
    encodes: Flags
    decodes: Flags
    sends: Flags
    receives: Flags


@lru_cache(512)
def columns_of(
    schedule: Schedule, elements: int, item: int, codec: Codec | None = None, density: float = 1.0,
    edges: tuple[int, ...] = (),
) -> HopColumns:  # fmt: skip
    """`loads_of` as columns."""
    loads = loads_of(schedule, elements, item, codec, density, edges)
    names = ("source", "target", "size", "encoded", "decoded", "added", "merged", "messages")
    rows = np.array([[getattr(load, name) for name in names] for load in loads], np.int64).reshape(-1, len(names))
    encoded, decoded, awake = set[int](), set[int](), set[int]()  # who has done so before
    first = np.zeros((len(loads), 4), np.bool_)
    for hop, load in enumerate(loads):
        first[hop] = (
            load.source not in encoded, load.target not in decoded, load.source not in awake, load.target not in awake,
        )  # fmt: skip
        awake |= {load.source, load.target}
        encoded |= {load.source} if load.encoded else set()
        decoded |= {load.target} if load.decoded else set()
    return HopColumns(*rows.T, *first.T)


@lru_cache(512)
def loads_of(
    schedule: Schedule, elements: int, item: int, codec: Codec | None = None, density: float = 1.0,
    edges: tuple[int, ...] = (),
) -> tuple[HopLoad, ...]:  # fmt: skip
    """The work of every hop that sends anything, for a vector of `elements` elements of `item` bytes.

    Parts lie between `edges` (none: even ones). With a codec each part is encoded by itself: partial sums at every hop,
    a result once, by the first rank that has it. For sparse schedules the work is an expectation, if the fraction
    `density` of each rank's elements is not 0.
    """
    edges = edges or even_edges(elements, schedule.parts)
    if schedule.sparse and schedule.sparse.whole:
        sums, results = halved(schedule)
        last = loads_of(results, elements, item, codec)
        after = tuple(replace(load, step=load.step + len(sums.steps)) for load in last)
        return _of_streams(sums, edges, item, density) + after
    if schedule.sparse:
        return _of_streams(schedule, edges, item, density)
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
            added, strand = moved if hop.add else 0, hop.start % schedule.strands
            found.append(HopLoad(number, hop.source, hop.target, size, *own, added, strand=strand))
        final |= handed
    return tuple(found)


def _of_streams(schedule: Schedule, edges: tuple[int, ...], item: int, density: float) -> tuple[HopLoad, ...]:
    """The expected work of sparse hops. A part has the more entries the more ranks it is the sum of; its head is a
    message of its own."""
    found: list[HopLoad] = []

    def note(number: int, hop: Hop, ranks: Sequence[int]) -> None:
        lengths = [edges[part + 1] - edges[part] for part in range(hop.start, hop.stop)]
        if not sum(lengths):
            return
        body = entries = 0
        for length, many in zip(lengths, ranks, strict=True):
            body += expected_size(length, item, density, many)
            entries += round(min(union(length, density, many), delta(length, item)))
        size = body + HEAD * len(lengths)
        found.append(HopLoad(number, hop.source, hop.target, size, 0, 0, 0, entries, 1 + bool(body)))

    carried_out(schedule, [[1] * schedule.parts for _ in range(schedule.ranks)], note=note)
    return tuple(found)
