"""A comparison as one HTML page that needs nothing else: verdict, table, losses, timelines."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib.resources import files
from math import isfinite
from pathlib import Path
from typing import Final

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from partita.report.comparison import Comparison, Row, error_of, verdict
from partita.report.files import write_file
from partita.report.svg import timeline_svg
from partita.units import show_bytes, show_seconds

COLOURS: Final = ("#4878cf", "#d65f5f", "#59a14f", "#e08b3c", "#8c6bb1", "#9aa0a6")
WIDTH, HEIGHT = 900, 220  # pixels


def write_page(comparison: Comparison, path: Path) -> None:
    """Write the page. Raises OptionError where the path cannot be written."""
    write_file(path, comparison_page(comparison))


def comparison_page(comparison: Comparison) -> str:
    """The page as text; every name in it is escaped."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters.update(seconds=show_seconds, bytes=show_bytes, error=error_of)
    template = environment.from_string((files("partita.report") / "comparison.html").read_text(encoding="utf-8"))
    drawings = [
        Markup(timeline_svg(timeline))  # it escapes names itself
        for row in comparison.rows
        for timeline in (row.predicted, row.measured)
        if timeline is not None and timeline.spans
    ]
    losses = Markup(loss_svg(comparison.rows))  # so does this
    return template.render(comparison=comparison, verdict=verdict(comparison), drawings=drawings, losses=losses)


def loss_svg(rows: Sequence[Row]) -> str:
    """Loss over seconds, a curve a plan; nothing where no loss was recorded."""
    curves = [(row.plan, [(t, value) for _, t, value in row.loss if isfinite(value)]) for row in rows]
    points = [point for _, curve in curves for point in curve]
    if not points:
        return ""
    last = max(t for t, _ in points) or 1.0
    low, high = min(value for _, value in points), max(value for _, value in points)
    scale = (HEIGHT - 20) / ((high - low) or 1.0)
    parts = [f'<svg width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" font-size="11">']
    for place, (plan, curve) in enumerate(curves):
        colour = COLOURS[place % len(COLOURS)]
        line = " ".join(f"{t / last * WIDTH:.1f},{HEIGHT - (value - low) * scale:.1f}" for t, value in curve)
        parts.append(f'<polyline fill="none" stroke="{colour}" stroke-width="1.5" points="{line}"/>')
        parts.append(f'<text x="{WIDTH - 260}" y="{14 * (place + 1)}" fill="{colour}">{escape(plan)}</text>')
    return "".join([*parts, f'<text x="0" y="12">loss {low:.4g} to {high:.4g} over {show_seconds(last)}</text></svg>'])
