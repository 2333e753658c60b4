"""The numbers behind a page's figures, as plain data: losses with bands, memory, traffic, timelines."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from math import isfinite
from statistics import fmean, median
from typing import Any, Final

import numpy as np

from partita.cost.memory_curve import highest
from partita.program.timeline import Timeline
from partita.report.comparison import Comparison, Curve, Row
from partita.report.spans import packed, thinned
from partita.units import Bytes, Seconds

POINTS: Final = 240  # of a curve
MOMENTS: Final = 120  # of a curve of memory
RANKS: Final = 24  # rows and columns of a traffic matrix, curves of memory


def figures(comparison: Comparison, most: int) -> tuple[list[dict[str, Any]], list[str]]:
    """What the page's script draws of every row, with at most `most` spans in all, and words on what it leaves out."""
    timelines = [t for row in comparison.rows for t in (row.predicted, row.measured) if t is not None]
    shown = thinned(timelines, most)
    spans = {id(timeline): each.spans for timeline, each in zip(timelines, shown, strict=True)}
    rows: list[dict[str, Any]] = []
    for row in comparison.rows:
        sides = [row.predicted, row.measured]
        lanes = packed([spans[id(side)] if side else () for side in sides])
        both: dict[str, Any] = {"predicted": side_of(sides[0], lanes[0]), "measured": side_of(sides[1], lanes[1])}
        rows.append({"plan": row.plan, "class": row.semantics, "error": row.error, "loss": loss_of(row)} | both)
    return rows, [each.words for each in shown if each.words]


def side_of(timeline: Timeline | None, lanes: dict[str, Any]) -> dict[str, Any] | None:
    """A prediction or a measurement."""
    if timeline is None:
        return None
    return {
        "step": timeline.step_seconds, "low": timeline.low, "high": timeline.high, "n": timeline.n,
        "memory": list(timeline.memory), "sent": list(timeline.wire_sent), "lanes": lanes,
        "traffic": traffic_of(timeline), "over": over_time(timeline, lanes["zero"]), "uses": uses_of(timeline),
    }  # fmt: skip


def traffic_of(timeline: Timeline) -> dict[str, Any] | None:
    """Bytes from rank to rank of the first ranks, and of how many ranks they are."""
    if not timeline.traffic:
        return None
    size = max(len(timeline.wire_sent), *(max(source, to) + 1 for source, to, _ in timeline.traffic))
    shown = min(size, RANKS)
    cells = [[source, to, sent] for source, to, sent in timeline.traffic if source < shown and to < shown]
    return {"ranks": size, "shown": shown, "cells": cells}


def over_time(timeline: Timeline, zero: Seconds) -> list[list[list[float]]]:
    """Live bytes of the first ranks as (seconds, bytes): the highest moment of every stretch, so peaks stay."""
    return [[[at - zero, size] for at, size in _peaks(series)] for series in timeline.memory_over_time[:RANKS]]


def uses_of(timeline: Timeline) -> list[list[Bytes | list[Bytes]]]:
    """For the moments of `over_time` of each of the first ranks what the bytes are for, in the order of PURPOSES: a
    number where it stays the same."""
    found: list[list[Bytes | list[Bytes]]] = []
    for series, parts in zip(timeline.memory_over_time[:RANKS], timeline.memory_parts, strict=False):
        columns = [list(column) for column in zip(*(parts[i] for i in _moments(series)), strict=True)]
        found.append([column[0] if len(set(column)) == 1 else column for column in columns])
    return found


def _peaks(series: Sequence[tuple[Seconds, Bytes]]) -> list[tuple[Seconds, Bytes]]:
    return [series[i] for i in _moments(series)]


def _moments(series: Sequence[tuple[Seconds, Bytes]]) -> list[int]:
    return highest(np.array([size for _, size in series], np.int64), MOMENTS)


def loss_of(row: Row) -> dict[str, Any] | None:
    """The loss against samples and against seconds: x, middle, and low and high where there are repeats; and what was
    held out, where it was evaluated on the way."""
    curves = [curve for curve in (row.losses or (row.loss,)) if len(curve) > 0]
    if not curves:
        return None
    timeline = row.measured or row.predicted
    batch = timeline.batch if timeline else 1
    found = {"samples": _by_step(curves, batch), "seconds": _by_time(curves), "repeats": len(curves)}
    return found | {"held": held_out_of(row, batch)}


def held_out_of(row: Row, batch: int) -> dict[str, list[list[float]]]:
    """The losses of samples that are held out against samples and against seconds of training: x, loss."""
    ended = {step + 1: seconds for step, seconds, _ in row.loss}
    found = [(step, loss) for step, loss in row.evaluations if isfinite(loss)]
    timed = [[ended[step], loss] for step, loss in found if step in ended]
    return {"samples": [[step * batch, loss] for step, loss in found], "seconds": timed}


def _by_step(curves: Sequence[Curve], batch: int) -> list[list[float]]:
    tables = [{step: loss for step, _, loss in curve} for curve in curves]
    steps = sorted(set.intersection(*(set(table) for table in tables)))
    points = [((step + 1) * batch, [table[step] for table in tables]) for step in steps]
    return _bands(points)


def _by_time(curves: Sequence[Curve]) -> list[list[float]]:
    """Every repeat has its own clock: at each moment of the first one, what every repeat had reached."""
    last = min(curve[-1][1] for curve in curves)
    moments = sorted({seconds for _, seconds, _ in curves[0] if seconds <= last} or {last})
    return _bands([(at, [_reached(curve, at) for curve in curves]) for at in moments])


def _reached(curve: Curve, at: Seconds) -> float:
    return curve[max(bisect_right(curve, at, key=lambda point: point[1]) - 1, 0)][2]


def _bands(points: Sequence[tuple[float, Sequence[float]]]) -> list[list[float]]:
    """[x, middle, low, high], each the mean over a stretch of steps so that a curve has at most POINTS."""
    clean = [(x, values) for x, values in points if all(isfinite(value) for value in values)]
    stride = max(-(-len(clean) // POINTS), 1)
    stretches = [clean[i : i + stride] for i in range(0, len(clean), stride)]
    return [
        [part[-1][0], *(fmean(pick(values) for _, values in part) for pick in (median, min, max))] for part in stretches
    ]
