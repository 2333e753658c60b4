"""Plans over bandwidths as one drawing that needs no script: who takes the least time where.

seconds | ddp -. o         lines predicted, dots measured
        |  o    `-:----    a rule where another plan becomes the quickest as predicted, a ring where it did as measured
        +----------:----
     10 Mbit/s     :   10 Gbit/s
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10
from typing import Final

from partita.report.comparison import Comparison
from partita.searches.sweep import Curve, lowest
from partita.telling import escaped
from partita.units import show_bandwidth, show_seconds

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM, ENTRY = 900, 440, 74, 34, 44, 44, 18  # pixels
TICKS: Final = (1, 2, 5)
COLUMNS: Final = 3  # of plans in the legend, fewer where their names are long
KEY, LETTER = 28, 6.4  # pixels of a legend's line, and of a letter
COLOURS: Final = (  # light, dark; of a page's plans too
    ("#1f5fa8", "#7db2f0"), ("#c2571a", "#f0945a"), ("#2e7d4f", "#6cc492"), ("#8a4fa3", "#c79be0"),
    ("#8c6a00", "#dcbb4c"), ("#b0305a", "#f07fa0"), ("#12757f", "#5cc4cf"), ("#5f5f5f", "#b4b4b4"),
    ("#7a5230", "#cc9a74"), ("#4b55c4", "#9fa6f7"),
)  # fmt: skip
INK: Final = (("#1d1c1a", "#ddd8cc"), ("#e8e5de", "#3a3833"))  # of letters and of what lies behind, light and dark


@dataclass(frozen=True, slots=True)
class Line:
    """A plan's seconds at bytes a second of the narrowest link, predicted and, where it ran, measured; `place` chooses
    its colour."""

    plan: str
    predicted: Curve
    measured: Curve = ()
    place: int = 0


def map_lines(comparison: Comparison) -> tuple[Line, ...]:
    """A step of every plan that was predicted at other bandwidths; where some reached a target loss, the seconds that
    each of these takes to it. Measured at the cluster's own bandwidth."""
    rows = [(place, row) for place, row in enumerate(comparison.rows) if row.over and row.measured]
    reached = [(place, row) for place, row in rows if row.seconds_to_target]
    own, found = comparison.cluster.narrowest, list[Line]()
    for place, row in reached or rows:
        assert row.measured
        steps = (row.seconds_to_target or 0.0) / row.measured.step_seconds if reached else 1.0
        predicted = tuple((bandwidth, steps * seconds) for bandwidth, seconds in row.over)
        found.append(Line(row.plan, predicted, ((own, steps * row.measured.step_seconds),), place))
    return tuple(found)


def map_about(comparison: Comparison) -> str:
    """What the lines show, in words."""
    return "to the target loss" if any(row.over and row.seconds_to_target for row in comparison.rows) else "a step"


def turns(lines: Sequence[Line]) -> str:
    """Which plan is predicted to be the fastest at which bandwidth, in words."""
    found = lowest({line.plan: line.predicted for line in lines})
    return ", ".join([found[0][1], *(f"{plan} from {show_bandwidth(at)}" for at, plan in found[1:])]) if found else ""


def map_svg(lines: Sequence[Line], title: str, *, alone: bool = True) -> str:
    """The drawing; `alone` with colours of its own."""
    points = [point for line in lines for point in (*line.predicted, *line.measured)]
    longest = KEY + LETTER * max(len(line.plan) + 2 for line in lines)
    columns = max(min(COLUMNS, int((WIDTH - LEFT) / longest)), 1)
    rows = -(-len(lines) // columns)
    (low, high), (least, most) = ((min(each), max(each)) for each in zip(*points, strict=True))
    plot = Plot(low, high, least, most)
    head = '<svg xmlns="http://www.w3.org/2000/svg" ' if alone else "<svg "
    parts = [
        f'{head}class="map" viewBox="0 0 {WIDTH} {HEIGHT + ENTRY * rows}" font-family="sans-serif" font-size="11.5" '
        f'role="img" aria-label="{escaped(title)}">',
        f"<style>{_style()}</style>" if alone else "",
        f'<text x="{LEFT}" y="14" font-size="13">{escaped(title)}</text>', *plot.axes(), *_turns(lines, plot),
    ]  # fmt: skip
    for line in lines:
        parts += _drawn(line, plot)
    for place, line in enumerate(lines):
        x, y = LEFT + (WIDTH - LEFT) // columns * (place % columns), HEIGHT + 4 + ENTRY * (place // columns)
        most = int((WIDTH - LEFT - KEY) / LETTER)  # a line's worth
        name = line.plan if len(line.plan) <= most else f"{line.plan[: most - 1]}\N{HORIZONTAL ELLIPSIS}"
        parts.append(
            f'<g class="p{line.place % 10}"><path class="line" d="M{x} {y - 4}h22"/>'
            f'<text x="{x + KEY}" y="{y}">{escaped(name)}</text></g>'
        )
    return "".join([*parts, "</svg>"])


@dataclass(frozen=True, slots=True)
class Plot:
    """Logarithmic axes: bytes a second from `low` to `high`, seconds from `least` to `most`."""

    low: float
    high: float
    least: float
    most: float

    def x(self, bandwidth: float) -> float:
        """The horizontal position of a bandwidth."""
        return LEFT + _share(self.low, self.high, bandwidth) * (WIDTH - RIGHT - LEFT)

    def y(self, seconds: float) -> float:
        """The vertical position of a time."""
        return HEIGHT - BOTTOM - _share(self.least, self.most, seconds) * (HEIGHT - BOTTOM - TOP)

    def axes(self) -> Iterator[str]:
        """The axes as SVG."""
        bottom = HEIGHT - BOTTOM
        for seconds in ticks(self.least, self.most):
            y = self.y(seconds)
            yield f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>'
            yield f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{show_seconds(seconds)}</text>'
        for bits in ticks(8 * self.low, 8 * self.high):
            x = self.x(bits / 8)
            yield f'<path class="axis" d="M{x:.1f} {bottom}v5"/>'
            yield f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{show_bandwidth(bits / 8)}</text>'
        yield f'<path class="axis" d="M{LEFT} {bottom}H{WIDTH - RIGHT}"/>'


def ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten from `low` to `high`; of a wide range fewer of them."""
    found = [k * 10.0**power for power in range(floor(log10(low)), ceil(log10(high)) + 1) for k in TICKS]
    inside = [value for value in found if low * 0.999 <= value <= high * 1.001]
    return [value for value in inside if len(inside) <= 9 or f"{value:e}".startswith("1")]


def _share(low: float, high: float, value: float) -> float:
    """Where a value is between the two, by logarithms."""
    return log10(value / low) / log10(high / low) if high > low else 0.5


def _turns(lines: Sequence[Line], plot: Plot) -> Iterator[str]:
    """Above, who is the quickest as predicted, and rules where that changes; rings where it did as measured."""
    place = {line.plan: line.place % 10 for line in lines}
    first = lowest({line.plan: line.predicted for line in lines})
    ends = [*(at for at, _ in first[1:]), plot.high]
    for (at, plan), end in zip(first, ends, strict=True):
        x, wide = plot.x(at), plot.x(end) - plot.x(at)
        said = f"{plan}: the quickest from {show_bandwidth(at)} to {show_bandwidth(end)}, predicted"
        yield f'<g class="p{place[plan]}"><rect class="full" x="{x:.1f}" y="22" width="{wide:.1f}" height="10">'
        yield f"<title>{escaped(said)}</title></rect></g>"
    for at, _ in first[1:]:
        x = plot.x(at)
        yield f'<path class="turn" d="M{x:.1f} 20V{HEIGHT - BOTTOM}"/>'
    for at, plan in lowest({line.plan: line.measured for line in lines if line.measured})[1:]:
        said = f"{plan}: the quickest from {show_bandwidth(at)} on, measured"
        yield f'<g class="p{place[plan]}"><circle class="ring" cx="{plot.x(at):.1f}" cy="27" r="6">'
        yield f"<title>{escaped(said)}</title></circle></g>"


def _drawn(line: Line, plot: Plot) -> Iterator[str]:
    """A line as predicted, a dot for each measurement."""
    way = "L".join(f"{plot.x(x):.1f} {plot.y(y):.1f}" for x, y in line.predicted)
    yield f'<g class="p{line.place % 10}"><path class="line" d="M{way}"><title>{escaped(line.plan)}</title></path>'
    for x, y in line.measured:
        said = f"{line.plan} at {show_bandwidth(x)}: {show_seconds(y)}, measured"
        yield f'<circle class="full" cx="{plot.x(x):.1f}" cy="{plot.y(y):.1f}" r="3.5">'
        yield f"<title>{escaped(said)}</title></circle>"
    yield "</g>"


def _style() -> str:
    def rules(dark: int) -> str:
        colours = "".join(f".p{i}{{--c:{pair[dark]}}}" for i, pair in enumerate(COLOURS))
        return f"text{{fill:{INK[dark][0]}}}.grid{{stroke:{INK[dark][1]}}}{colours}"

    marks = ".line,.ring{fill:none;stroke:var(--c);stroke-width:1.6}.full{fill:var(--c)}"
    rest = f".axis,.turn{{stroke:#8a867b}}.turn{{stroke-dasharray:4 3}}{marks}"
    return f"{rules(0)}{rest}@media(prefers-color-scheme:dark){{{rules(1)}}}"
