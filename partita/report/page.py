"""A comparison as one HTML page that needs nothing else: words, table, figures, timelines. It works from a disk."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import files
from math import isfinite
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from partita.cluster.show import show_cluster
from partita.program.timeline import PURPOSES, Timeline
from partita.report.answer import LINES
from partita.report.comparison import Comparison, Row, ln_ratio
from partita.report.figures import figures
from partita.report.files import write_file
from partita.report.map import map_about, map_lines, map_svg, turns
from partita.report.words import findings, naive_ratio
from partita.telling import printable
from partita.units import show_bytes, show_rate, show_seconds

MOST_BYTES: Final = 1_000_000
BUDGETS: Final = (16_000, 8_000, 4_000, 1_000, 0)  # spans, until the page is small enough
SCRIPTS: Final = ("base.js", "table.js", "plot.js", "charts.js", "memory.js", "detail.js", "timeline.js")
PARTS: Final = {
    "forward": "forward", "backward": "backward", "optimizer": "optimizer", "codec": "codec", "data": "data",
    "exposed_communication": "messages", "idle": "idle",
}  # fmt: skip
COLUMNS: Final = {
    "predicted": "predicted", "measured": "measured", "ln": "ln p/m", "sum": "ln sum/m", "max": "ln max/m",
    "rate": "samples/s", "memory_predicted": "memory predicted", "memory_measured": "memory measured",
    "wire_predicted": "bytes predicted", "wire_measured": "bytes measured", "loss": "final loss", "target": "to target",
}  # fmt: skip
NOTHING: Final = "\N{EN DASH}"


@dataclass(frozen=True, slots=True)
class Cell:
    """What a cell says, and the number that it is sorted by."""

    text: str
    key: float | None = None
    small: str = ""


@dataclass(frozen=True, slots=True)
class Bar:
    """A stacked bar: parts as (name, class, percent from the left, percent wide), and the same in words."""

    parts: tuple[tuple[str, str, float, float], ...]
    words: str


def write_page(comparison: Comparison, path: Path, beside: Mapping[str, str] | None = None) -> None:
    """Write the page. Raises OptionError where the path cannot be written."""
    write_file(path, comparison_page(comparison, beside))


def comparison_page(comparison: Comparison, beside: Mapping[str, str] | None = None) -> str:
    """The page as text, less than 1 MB; every name in it is escaped. `beside` names pages to link to, by their path."""
    pages = (_page(comparison, most, beside or {}) for most in BUDGETS)
    found = next(pages)
    while len(found.encode()) >= MOST_BYTES and (smaller := next(pages, "")):
        found = smaller
    return found


def _page(comparison: Comparison, most: int, beside: Mapping[str, str]) -> str:
    drawn, left_out = figures(comparison, most)
    longest = max((t.step_seconds for row in comparison.rows for t in _sides(row)), default=0.0) or 1.0
    filled = {key for row in comparison.rows for key, cell in cells(row).items() if cell.key is not None}
    return _template().render(
        columns={key: label for key, label in COLUMNS.items() if key in filled},
        c=comparison, beside=beside, findings=findings(comparison),
        left_out=left_out, data=embedded({"rows": drawn, "uses": list(PURPOSES)}),
        rows=[(row, cells(row), [(t, bar(t, longest)) for t in _sides(row)]) for row in comparison.rows],
        cluster=show_cluster(comparison.cluster), parts=dict.fromkeys(PARTS.values()),
        repeats=max((row.measured.n for row in comparison.rows if row.measured), default=0),
        over=_map(comparison), about=map_about(comparison), turns=turns(map_lines(comparison)),
        style=_part("page.css"), script=Markup("\n").join(_part(name) for name in SCRIPTS),
    )  # fmt: skip


def _map(comparison: Comparison) -> Markup | None:
    """Plans over bandwidths, where these were asked for; map_svg escapes names."""
    lines, about = map_lines(comparison), map_about(comparison)
    return Markup(map_svg(lines, f"seconds {about}", alone=False)) if lines else None


@cache
def _template() -> Template:
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=_shown
    )
    environment.filters["breakable"] = breakable
    return environment.from_string(str(_part("page.html")))


def _shown(value: Any) -> Any:
    """What stands in the page for a value: a text without what a browser could obey, such as a change of direction."""
    return printable(value, LINES) if isinstance(value, str) and not isinstance(value, Markup) else value


def _part(name: str) -> Markup:
    return Markup((files("partita.report") / "web" / name).read_text(encoding="utf-8"))  # ours, without data


def breakable(name: str) -> Markup:
    """A plan's name, escaped, that may go on in a new line before a parenthesis and after a comma or an underscore."""
    text = str(Markup.escape(printable(name)))
    for before, after in (("(", "<wbr>("), (",", ",<wbr>"), ("_", "_<wbr>")):
        text = text.replace(before, after)
    return Markup(text)


def embedded(value: Any) -> Markup:
    """JSON for a script element: no letter of it can end the element or change how another is shown, and
    numbers that JSON lacks are null."""
    text = json.dumps(_finite(value), allow_nan=False, separators=(",", ":"))
    for letter in "<>&":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return Markup(text)  # within strings, the only place for these letters


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.7g}") if isfinite(value) else None
    return _shown(value)


def _sides(row: Row) -> Iterator[Timeline]:
    yield from (t for t in (row.predicted, row.measured) if t is not None)


def cells(row: Row) -> dict[str, Cell]:
    """The cells of a table's row by column."""
    p, m = row.predicted, row.measured
    best, target = m or p, row.seconds_to_target
    rate = best.batch / best.step_seconds if best and best.step_seconds else None
    return {
        "predicted": _step(p), "measured": _step(m), "ln": _signed(ln_ratio(row)),
        "sum": _signed(naive_ratio(row, "sum")), "max": _signed(naive_ratio(row, "max")),
        "rate": Cell(NOTHING if rate is None else show_rate(rate), rate),
        "memory_predicted": _fullest(p.memory if p else ()), "memory_measured": _fullest(m.memory if m else ()),
        "wire_predicted": _fullest(p.wire_sent if p else ()), "wire_measured": _fullest(m.wire_sent if m else ()),
        "loss": Cell(NOTHING if row.final_loss is None else f"{row.final_loss:.4g}", row.final_loss),
        "target": Cell(NOTHING) if target is None else Cell(show_seconds(target), target),
    }  # fmt: skip


def bar(timeline: Timeline, longest: float) -> Bar:
    """Where the step goes; the longest step of the table fills the width."""
    at, parts, words = 0.0, [], []
    for name, seconds in asdict(timeline.breakdown).items():
        width = 100 * seconds / longest
        if seconds > 0:
            said = f"{name.replace('_', ' ')} {show_seconds(seconds)}"
            parts.append((said, PARTS[name], round(at, 3), round(width, 3)))
            words.append(said)
        at += width
    origin = "measured" if timeline.origin == "measured" else "predicted"
    return Bar(tuple(parts), f"{origin}: {', '.join(words) or 'not broken down'}")


def _step(timeline: Timeline | None) -> Cell:
    if timeline is None:
        return Cell(NOTHING)
    low, high = show_seconds(timeline.low), show_seconds(timeline.high)
    if low.split()[-1] == high.split()[-1]:
        low = low.split()[0]
    spread = f"{low} \N{EN DASH} {high}" if timeline.n > 1 else ""
    return Cell(show_seconds(timeline.step_seconds), timeline.step_seconds, spread)


def _signed(value: float | None) -> Cell:
    return Cell(NOTHING if value is None else f"{value:+.2f}".replace("-", "\N{MINUS SIGN}"), value)


def _fullest(numbers: tuple[int, ...]) -> Cell:
    return Cell(show_bytes(max(numbers)), max(numbers)) if numbers else Cell(NOTHING)
