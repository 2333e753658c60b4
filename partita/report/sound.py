"""What holds of every record of a comparison that Partita writes, whoever wrote the one that is read: the law that
tables, pages and drawings rely on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Final

from partita.program.breakdown import KINDS
from partita.program.timeline import PURPOSES, Timeline
from partita.report.comparison import Row

LEAST: Final = 1e-18  # of numbers above 0
MOST: Final = 1e18  # seconds, or bytes a second
WHOLE: Final = 2**63  # bytes, ranks and rounds are below
ORIGINS: Final = ("simulated", "measured")


def check_rows(rows: Sequence[Row]) -> None:
    """Raises ValueError with the first place that no comparison has, and what belongs there."""
    for place, row in enumerate(rows):
        at = f"rows.{place}"
        for fault in _faults(row):
            raise ValueError(f"{at}.{fault}")


def _faults(row: Row) -> Iterator[str]:
    for name, seconds in row.naive.items():
        yield from _measure(f"naive.{name}", seconds)
    for side in ("predicted", "measured"):
        timeline: Timeline | None = getattr(row, side)
        if timeline is not None:
            yield from (f"{side}.{fault}" for fault in _of_timeline(timeline))
    for i, (bandwidth, seconds) in enumerate(row.over):
        for what in (bandwidth, seconds):
            if not what > 0:
                yield f"over.{i}: {what:g} is none that a link or a step has"
            yield from _measure(f"over.{i}", what)
    if row.seconds_to_target is not None:
        yield from _measure("seconds_to_target", row.seconds_to_target)
    for name, curve in (("loss", row.loss), *((f"losses.{i}", curve) for i, curve in enumerate(row.losses))):
        for i, (step, seconds, _) in enumerate(curve):
            yield from _whole(f"{name}.{i}", step)
            yield from _measure(f"{name}.{i}", seconds)
    if row.steps_to_target is not None:
        yield from _whole("steps_to_target", row.steps_to_target)


def _of_timeline(t: Timeline) -> Iterator[str]:
    if t.origin not in ORIGINS:
        yield f"origin: it is {t.origin!r}, and not {' or '.join(ORIGINS)}"
    if t.step_seconds <= 0:
        yield f"step_seconds: a step of {t.step_seconds:g} s is none"
    for name in ("step_seconds", "low", "high"):
        yield from _measure(name, getattr(t, name))
    for part in fields(t.breakdown):
        yield from _measure(f"breakdown.{part.name}", getattr(t.breakdown, part.name))
    if t.low > t.high:
        yield f"low: {t.low:g} is above high, {t.high:g}"
    yield from _whole("batch", t.batch)
    yield from _whole("n", t.n, 1)
    for name in ("memory", "resident", "wire_sent"):
        for i, size in enumerate(getattr(t, name)):
            yield from _whole(f"{name}.{i}", size)
    for i, numbers in enumerate(t.traffic):
        for number in numbers:
            yield from _whole(f"traffic.{i}", number)
    yield from _of_spans(t)
    yield from _of_memory(t)


def _of_spans(t: Timeline) -> Iterator[str]:
    for i, span in enumerate(t.spans):
        if span.kind not in KINDS:
            yield f"spans.{i}.kind: there is no instruction of kind {span.kind!r}"
        if not -MOST < span.start <= span.end < MOST:
            yield f"spans.{i}: it lasts from {span.start:g} to {span.end:g} s"
        for name in ("rank", "round"):
            yield from _whole(f"spans.{i}.{name}", getattr(span, name))


def _of_memory(t: Timeline) -> Iterator[str]:
    for rank, series in enumerate(t.memory_over_time):
        for i, (at, size) in enumerate(series):
            if not abs(at) < MOST:
                yield f"memory_over_time.{rank}.{i}: {at:g} s is no moment"
            yield from _whole(f"memory_over_time.{rank}.{i}", size, -WHOLE)
    if len(t.memory_parts) not in (0, len(t.memory_over_time)):
        yield f"memory_parts: it is of {len(t.memory_parts)} ranks, memory_over_time of {len(t.memory_over_time)}"
    for rank, (parts, series) in enumerate(zip(t.memory_parts, t.memory_over_time, strict=False)):
        if len(parts) != len(series):
            yield f"memory_parts.{rank}: it has {len(parts)} moments, memory_over_time {len(series)}"
        for i, sizes in enumerate(parts):
            if len(sizes) != len(PURPOSES):
                yield f"memory_parts.{rank}.{i}: it has {len(sizes)} parts, and not {len(PURPOSES)}"
            for size in sizes:
                yield from _whole(f"memory_parts.{rank}.{i}", size, -WHOLE)


def _measure(name: str, value: float) -> Iterator[str]:
    """Seconds, or bytes a second; NaN where they are not known."""
    if not (value != value or value == 0 or LEAST <= value <= MOST):
        yield f"{name}: {value:g} is not from {LEAST:g} to {MOST:g}, or 0"


def _whole(name: str, value: int, least: int = 0) -> Iterator[str]:
    if not least <= value < WHOLE:
        yield f"{name}: {value} is not from {least} to {WHOLE - 1}"
