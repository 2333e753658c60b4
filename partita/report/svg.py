"""Predicted over measured steps as one small drawing that needs no script, such as a README shows.

rank 0 compute  p |##F##|####B####|U|
                m |###F###|###B####|U|
rank 0 wire     p         |##A##|##A##|
                m           |##A##|##A##|
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from partita.program.timeline import Timeline
from partita.report.comparison import Row
from partita.report.spans import packed
from partita.telling import escaped
from partita.units import show_seconds

COLOURS: Final = {  # light, dark
    "forward": ("#5b92d6", "#7fb0f0"), "backward": ("#24508f", "#4a7fce"), "optimizer": ("#2e7d4f", "#62bd8a"),
    "codec": ("#8253a5", "#b892da"), "data": ("#7d776a", "#98948a"), "messages": ("#cc5a1c", "#ef9050"),
    "other": ("#8f7300", "#d2b34a"), "ink": ("#1d1c1a", "#e8e5de"),
}  # fmt: skip
ROW, BAR, LABEL, WIDTH, HEAD = 30, 12, 130, 900, 44  # pixels
MOST_ROWS: Final = 32


def timeline_svg(row: Row) -> str:
    """The rounds that are known of both sides, at most 32 lanes; hovering names an instruction and its seconds."""
    sides = [timeline for timeline in (row.predicted, row.measured) if timeline is not None]
    lanes = packed([tuple(timeline.spans) for timeline in sides])
    keys = sorted({tuple(key) for side in lanes for key in side["lanes"]})
    places = {key: place for place, key in enumerate(keys[:MOST_ROWS])}
    steps = ", ".join(f"{_origin(t)} {show_seconds(t.step_seconds)}" for t in sides)
    shown = {part for side in lanes for _, _, part in side["names"]}
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEAD + ROW * len(places) + 6}" '
        f'font-family="sans-serif" font-size="11"><style>{_style()}</style>'
        f'<text x="0" y="13" font-size="13">{escaped(f"{row.plan}: {steps} a step")}</text>', *_legend(shown),
    ]  # fmt: skip
    for (rank, lane), place in places.items():
        parts.append(f'<text x="0" y="{HEAD + ROW * place + 16}">rank {rank} {escaped(str(lane))}</text>')
    ends = [s + long for side in lanes for s, long in zip(side["spans"][3::5], side["spans"][4::5], strict=True)]
    length = max(ends, default=1)
    for strip, (timeline, side) in enumerate(zip(sides, lanes, strict=True)):
        parts += _bars(side, strip, _origin(timeline)[0], places, (WIDTH - LABEL) / length)
    if len(keys) > MOST_ROWS:
        parts.append(f'<text x="{WIDTH}" y="13" text-anchor="end">and {len(keys) - MOST_ROWS} lanes more</text>')
    return "".join([*parts, "</svg>"])


def _origin(timeline: Timeline) -> str:
    return "measured" if timeline.origin == "measured" else "predicted"


def _bars(
    side: dict[str, Any], strip: int, letter: str, places: dict[tuple[Any, ...], int], scale: float
) -> Iterator[str]:
    """A strip's letter on each of its lanes, and a bar an instruction."""
    lanes, spans = [tuple(key) for key in side["lanes"]], side["spans"]
    for key in lanes:
        if key in places:
            yield f'<text x="{LABEL - 14}" y="{HEAD + ROW * places[key] + BAR * (strip + 1) - 2}">{letter}</text>'
    for i in range(0, len(spans), 5):
        lane, name, _, start, long = spans[i : i + 5]
        if lanes[lane] not in places or start < 0:
            continue
        label, kind, part = side["names"][name]
        x, y = LABEL + start * scale, HEAD + ROW * places[lanes[lane]] + (BAR + 1) * strip
        title = escaped(f"{label} ({kind}): {show_seconds(long * side['unit'])}")
        yield (
            f'<rect class="{part}" x="{x:.1f}" y="{y}" width="{max(long * scale - 0.5, 0.4):.1f}" height="{BAR}">'
            f"<title>{title}</title></rect>"
        )


def _legend(shown: set[str]) -> Iterator[str]:
    at = LABEL
    for part in COLOURS:
        if part in shown:
            yield f'<rect class="{part}" x="{at}" y="24" width="9" height="9"/><text x="{at + 13}" y="32">{part}</text>'
            at += 32 + 7 * len(part)


def _style() -> str:
    def rules(dark: int) -> str:
        fills = "".join(f".{name}{{fill:{pair[dark]}}}" for name, pair in COLOURS.items() if name != "ink")
        return f"text{{fill:{COLOURS['ink'][dark]}}}{fills}"

    return f"{rules(0)}@media(prefers-color-scheme:dark){{{rules(1)}}}"
