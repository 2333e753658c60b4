"""A schedule carried out on plain vectors, without ranks, messages or time: the oracle of the worker and of tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from partita.wire.schedule import Hop, Schedule

V = TypeVar("V")
Code = Callable[[Any, int, int], Any]
Note = Callable[[int, Hop, Sequence[Any]], object]


def carried_out(
    schedule: Schedule, vectors: Sequence[Sequence[V]], code: Code | None = None, note: Note | None = None
) -> list[list[V]]:
    """The parts that each rank ends with. `vectors[rank][part]` is what it begins with: anything that can be added.

    `code(value, rank, part)` is a value after `rank` has encoded and others have decoded it. Partial sums are encoded
    at every hop. A result is encoded once, by the first rank that has it, which itself takes what others decode; these
    forward the same bytes (Pipe-SGD's quantised all-reduce, QU-15). `note(step, hop, values)` is called for each hop.
    """
    coded: Code = code or (lambda value, rank, part: value)
    held: list[list[Any]] = [list(vector) for vector in vectors]
    final = [[False] * schedule.parts for _ in vectors]
    for number, step in enumerate(schedule.steps):
        for hop in step:
            for part in range(hop.start, hop.stop):
                if not hop.add and not final[hop.source][part]:
                    held[hop.source][part] = coded(held[hop.source][part], hop.source, part)
                    final[hop.source][part] = True
        before = [list(parts) for parts in held]
        for hop in step:
            if note is not None:
                note(number, hop, before[hop.source][hop.start : hop.stop])
            for part in range(hop.start, hop.stop):
                value = before[hop.source][part]
                if hop.add:
                    value = held[hop.target][part] + coded(value, hop.source, part)
                held[hop.target][part] = value
                final[hop.target][part] = not hop.add
    return held
