"""A Timeline as a small drawing: a row a rank and lane, a bar a span, of its last round.

rank 0 / compute  |##F##|####B####|U|
rank 0 / wire            |##A##|##A##|
"""

from __future__ import annotations

from html import escape
from typing import Final

from partita.program.timeline import Span, Timeline
from partita.units import Seconds, show_seconds

COLOURS: Final = {
    "Load": "#9aa0a6", "Compute": "#4878cf", "Pack": "#8c6bb1", "Combine": "#8c6bb1", "Collective": "#d65f5f",
    "Send": "#e08b3c", "Receive": "#e0b23c", "Update": "#59a14f", "Clip": "#59a14f", "Scale": "#59a14f",
}  # fmt: skip
OTHER: Final = "#bab0ac"
ROW, LABEL, WIDTH = 18, 130, 900  # pixels
MOST_ROWS: Final = 32


def timeline_svg(timeline: Timeline) -> str:
    """Inline SVG of the last round of at most 32 lanes; hovering names the span and its seconds."""
    spans = _last_round(timeline)
    if not spans:
        return f"<p>{escape(timeline.plan)}: no spans</p>"
    lanes = sorted({(span.rank, span.lane) for span in spans})
    rows = {lane: place for place, lane in enumerate(lanes[:MOST_ROWS])}
    first = min(span.start for span in spans)
    length = max(span.end for span in spans) - first or 1.0
    title = f"{timeline.plan}, {timeline.origin}: {show_seconds(timeline.step_seconds)} a step"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{ROW * (len(rows) + 1)}" '
        f'font-family="sans-serif" font-size="11"><text x="0" y="12">{escape(title)}</text>'
    ]
    for (rank, lane), place in rows.items():
        parts.append(f'<text x="0" y="{ROW * (place + 1) + 12}">rank {rank} / {escape(lane)}</text>')
    parts += [_bar(span, rows[span.rank, span.lane], first, length) for span in spans if (span.rank, span.lane) in rows]
    if len(lanes) > MOST_ROWS:
        parts.append(f'<text x="{LABEL}" y="12" dx="500">and {len(lanes) - MOST_ROWS} lanes more</text>')
    return "".join([*parts, "</svg>"])


def _last_round(timeline: Timeline) -> tuple[Span, ...]:
    last = max((span.round for span in timeline.spans), default=0)
    return tuple(span for span in timeline.spans if span.round == last)


def _bar(span: Span, row: int, first: Seconds, length: Seconds) -> str:
    scale = (WIDTH - LABEL) / length
    x, width = LABEL + (span.start - first) * scale, max((span.end - span.start) * scale, 0.5)
    label = f"{span.name} ({span.kind}): {show_seconds(span.end - span.start)}"
    return (
        f'<rect x="{x:.1f}" y="{ROW * (row + 1) + 1}" width="{width:.1f}" height="{ROW - 3}" '
        f'fill="{COLOURS.get(span.kind, OTHER)}"><title>{escape(label)}</title></rect>'
    )
