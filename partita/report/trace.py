"""Timelines as a Chrome JSON trace, which ui.perfetto.dev and chrome://tracing open.

process  ddp predicted   tracks  rank 0 / compute, rank 0 / wire, rank 1 / compute ...
process  ddp measured    tracks  the same names, so that a prediction lies above its measurement
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from partita.program.timeline import Timeline
from partita.report.files import write_file

MICROSECONDS: Final = 1e6


def write_trace(timelines: Sequence[Timeline], path: Path) -> None:
    """Write the timelines as one trace, a process each. Raises OptionError where the path cannot be written."""
    events = [event for process, timeline in enumerate(timelines, 1) for event in trace_events(timeline, process)]
    write_file(path, json.dumps({"displayTimeUnit": "ms", "traceEvents": events}))


def trace_events(timeline: Timeline, process: int) -> Iterator[dict[str, Any]]:
    """Trace events of one timeline: names, spans, peak memory; its first span starts at 0."""
    tracks = {key: i for i, key in enumerate(sorted({(span.rank, span.lane) for span in timeline.spans}), 1)}
    yield _name("process_name", process, 0, f"{timeline.plan} {timeline.origin}")
    yield {"ph": "M", "name": "process_sort_index", "pid": process, "tid": 0, "args": {"sort_index": process}}
    for (rank, lane), track in tracks.items():
        yield _name("thread_name", process, track, f"rank {rank} / {lane}")
        yield {"ph": "M", "name": "thread_sort_index", "pid": process, "tid": track, "args": {"sort_index": track}}
    first = min((span.start for span in timeline.spans), default=0.0)
    for span in timeline.spans:
        yield {
            "ph": "X", "name": span.name, "cat": span.kind, "pid": process, "tid": tracks[span.rank, span.lane],
            "ts": (span.start - first) * MICROSECONDS, "dur": (span.end - span.start) * MICROSECONDS,
            "args": {"kind": span.kind, "rank": span.rank, "lane": span.lane, "round": span.round,
                     "seconds": span.end - span.start},
        }  # fmt: skip
    for rank, peak in enumerate(timeline.memory):
        yield {
            "ph": "C", "name": f"rank {rank} / peak memory", "pid": process, "tid": 0, "ts": 0, "args": {"bytes": peak},
        }  # fmt: skip


def _name(kind: str, process: int, track: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": process, "tid": track, "args": {"name": name}}
