"""Terminal tables of rich: a comparison, a ranking of plans, the recipes, one timeline."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from rich.table import Table
from rich.text import Text

from partita.cluster.cluster import Device
from partita.program.timeline import Timeline
from partita.recipes.catalogue import Recipe
from partita.recipes.shared import SHARED
from partita.report.comparison import Comparison, Row, error_of, unreached
from partita.report.rows import Rows
from partita.searches.objective import money_of
from partita.searches.search import Search
from partita.searches.sweep import Sweep
from partita.telling import printable
from partita.units import show_bandwidth, show_bytes, show_rate, show_seconds

NEGLIGIBLE: Final = 1e-6  # of a step, which rounding leaves

NOTHING = "-"


def comparison_table(comparison: Comparison) -> Table:
    """A line a plan: step predicted and measured, errors, peak memory and wire bytes of the fullest rank, losses."""
    table = Rows(
        "plan", "predicted", "measured", "error", "naive\nerrors", "memory\npredicted", "memory\nmeasured",
        "wire\npredicted", "wire\nmeasured", "final\nloss", "loss from",
    )  # fmt: skip
    for row in comparison.rows:
        if row.error:
            table.add_row(Text(printable(row.plan)), Text("not run", style="red"))
            continue
        p, m = row.predicted, row.measured
        table.add_row(
            Text(printable(row.plan)), _step(p), _step(m), _percent(error_of(row)), _naive(row),
            _fullest(p, lambda t: t.memory), _fullest(m, lambda t: t.memory),
            _fullest(p, lambda t: t.wire_sent), _fullest(m, lambda t: t.wire_sent),
            NOTHING if row.final_loss is None else f"{row.final_loss:.4g}", _fall(row),
        )  # fmt: skip
    return table


def refusals(comparison: Comparison) -> tuple[str, ...]:
    """A sentence for each plan that was not run."""
    return tuple(f"{printable(row.plan)}: {printable(row.error)}" for row in comparison.rows if row.error)


def sweep_table(found: Sweep) -> Table:
    """A line a bandwidth: a step, what of it is spent waiting for messages, without codecs if the plan has any."""
    coded = ("without codec",) if any(point.plain for point in found.points) else ()
    table = Rows("bandwidth", "step", "waiting for messages", *coded)
    for point in found.points:
        share = f"{point.waiting / point.seconds:.0%}" if point.seconds else NOTHING
        plain = (show_seconds(point.plain),) if coded else ()
        table.add_row(show_bandwidth(point.bandwidth), show_seconds(point.seconds), share, *plain)
    return table


def search_table(search: Search, devices: Sequence[Device] = ()) -> Table:
    """A line a candidate, best first; with what a step costs where devices have prices."""
    money = [money_of(candidate.timeline, devices) for candidate in search.candidates]
    priced = ("dollars a step",) if any(money) else ()
    weighed = ("steps", "to the loss") if search.steps_to_loss else ()
    table = Rows("", "plan", "step", *weighed, "samples/s", "memory", "wire", *priced, "fits", "class")
    for place, (candidate, dollars) in enumerate(zip(search.candidates, money, strict=True), 1):
        t, steps = candidate.timeline, search.steps_to_loss * candidate.needs
        table.add_row(
            str(place), Text(printable(candidate.plan.name)), show_seconds(t.step_seconds),
            *([f"{steps:.0f}", show_seconds(steps * t.step_seconds)] if weighed else ()),
            show_rate(t.batch / t.step_seconds) if t.step_seconds else NOTHING,
            _fullest(t, lambda t: t.memory), _fullest(t, lambda t: t.wire_sent),
            *([f"{dollars:.3g}" if dollars else NOTHING] if priced else ()),
            "yes" if candidate.fits else "no", candidate.semantics,
        )  # fmt: skip
    return table


def minibatch_table(search: Search) -> Table:
    """A line a minibatch that was weighed, the soonest at the loss first; which of them are busy and learn."""
    table = Rows("minibatch", "plan", "rate", "steps", "step", "to the loss", "samples/s", "good", "costs")
    for m in search.minibatches:
        table.add_row(
            str(m.point.batch), Text(printable(m.plan)), f"{m.point.rate:g}" if m.point.rate else NOTHING,
            f"{m.steps:.0f}", show_seconds(m.step_seconds), show_seconds(m.seconds) + ("" if m.fits else ", not fit"),
            show_rate(m.samples_per_second), "yes" if m.good else NOTHING, m.costs,
        )  # fmt: skip
    return table


def costs_line(source: str, because: str) -> str:
    """Where the costs of a prediction come from."""
    return f"costs: {source}" + (f" ({because})" if because else "")


def recipes_table(recipes: Mapping[str, Recipe]) -> Table:
    """A line a recipe: its knobs with their defaults, its group, paper and entries of the catalogue; below, the knobs
    that all have."""
    table = Rows("name", "knobs", "group", "paper", "catalogue")
    for name, recipe in recipes.items():
        table.add_row(
            Text(name), Text(_knobs(recipe.own)), recipe.group, Text(recipe.paper), " ".join(recipe.catalogue)
        )
    table.caption, table.caption_justify = (
        Text(f"every recipe also takes {_knobs(SHARED)}; what does not go together is refused"),
        "left",
    )
    return table


def _knobs(defaults: Mapping[str, Any]) -> str:
    return ", ".join(f"{knob}={default}" for knob, default in defaults.items()) or NOTHING


def timeline_table(timeline: Timeline) -> Table:
    """One prediction or measurement: the step, where its time goes, memory and messages of the fullest rank."""
    table = Table(box=None, show_header=False, pad_edge=False)
    b, step = timeline.breakdown, timeline.step_seconds
    rows = {
        "plan": printable(timeline.plan),
        "step": str(_step(timeline)),
        "samples a second": show_rate(timeline.batch / step) if step else NOTHING,
        "forward": _share(b.forward, step), "backward": _share(b.backward, step),
        "optimizer": _share(b.optimizer, step), "codec": _share(b.codec, step), "data": _share(b.data, step),
        "exposed communication": _share(b.exposed_communication, step), "idle": _share(b.idle, step),
        "peak memory": _fullest(timeline, lambda t: t.memory) if timeline.memory else "",
        "wire bytes a step": _fullest(timeline, lambda t: t.wire_sent),
    }  # fmt: skip
    for name, value in rows.items():
        if value:
            table.add_row(name, Text(value))
    return table


def _step(timeline: Timeline | None) -> str:
    if timeline is None:
        return NOTHING
    text = show_seconds(timeline.step_seconds)
    if timeline.n < 2:
        return text
    return f"{text} ({show_seconds(timeline.low)} to {show_seconds(timeline.high)}, n={timeline.n})"


def _share(seconds: float, step: float) -> str:
    return f"{show_seconds(seconds)} ({seconds / step:.0%})" if step and seconds > NEGLIGIBLE * step else ""


def _percent(value: float | None) -> str:
    return NOTHING if value is None else f"{value:+.1%}"


def _naive(row: Row) -> str:
    if row.measured is None or not row.naive:
        return NOTHING
    measured = row.measured.step_seconds
    return "\n".join(f"{printable(name)} {_percent(seconds / measured - 1)}" for name, seconds in row.naive.items())


def _fullest(timeline: Timeline | None, per_rank: Callable[[Timeline], Sequence[int]]) -> str:
    numbers = per_rank(timeline) if timeline else ()
    return show_bytes(max(numbers)) if numbers else NOTHING


def _fall(row: Row) -> str:
    if not row.loss:
        return NOTHING
    text = f"{row.loss[0][2]:.4g} to {row.loss[-1][2]:.4g}"
    if unreached(row):
        return f"{text}, target not reached"
    return text if row.seconds_to_target is None else f"{text}, target after {show_seconds(row.seconds_to_target)}"
