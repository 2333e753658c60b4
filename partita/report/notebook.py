"""A Timeline that notebooks can draw and terminals can print, and results as notebooks show them: what the command line
says."""

from __future__ import annotations

from dataclasses import fields
from html import escape
from typing import final

from partita.cluster.cluster import Cluster
from partita.graph.graph import Graph
from partita.program.timeline import Timeline
from partita.report.answer import Answer
from partita.report.comparison import Row
from partita.report.printed import Printed
from partita.report.svg import timeline_svg
from partita.searches.fit import Fit
from partita.searches.search import Search
from partita.units import show_bytes, show_rate, show_seconds


@final
class Shown(Timeline):
    """A Timeline with `_repr_html_` (inline SVG, nothing from elsewhere) and a `str` of a few lines."""

    def __str__(self) -> str:
        return "\n".join(_lines(self))

    def _repr_html_(self) -> str:
        measured = self.origin == "measured"
        row = Row(self.plan, measured=self) if measured else Row(self.plan, predicted=self)
        return f"<div>{timeline_svg(row)}<pre>{escape(str(self))}</pre></div>"


def shown(timeline: Timeline) -> Shown:
    """A Timeline with its picture."""
    return Shown(**{field.name: getattr(timeline, field.name) for field in fields(timeline)})


@final
class ShownSearch(Printed, Search):
    """A Search with its table, which asks for the `graph` and the `cluster` that it was of."""

    graph: Graph
    cluster: Cluster

    def _answer(self) -> Answer:
        from partita.report.answers import search_answer

        return search_answer(self, self.graph, self.cluster)


@final
class ShownFit(Printed, Fit):
    """A Fit with its sentences, which name the `cluster`."""

    cluster: Cluster

    def _answer(self) -> Answer:
        from partita.report.answers import fit_answer

        return fit_answer(self, self.cluster)


def shown_search(found: Search, graph: Graph, cluster: Cluster) -> ShownSearch:
    """A Search with its table."""
    made = ShownSearch(**{one.name: getattr(found, one.name) for one in fields(Search)})
    vars(made).update(graph=graph, cluster=cluster)  # no fields: they are of how it is shown
    return made


def shown_fit(found: Fit, cluster: Cluster) -> ShownFit:
    """A Fit with its sentences."""
    made = ShownFit(**{one.name: getattr(found, one.name) for one in fields(Fit)})
    vars(made).update(cluster=cluster)
    return made


def _lines(timeline: Timeline) -> list[str]:
    step = timeline.step_seconds
    rate = f", {show_rate(timeline.batch / step)} samples/s" if step else ""
    lines = [f"{timeline.plan}, {timeline.origin}: {show_seconds(step)} a step{rate}"]
    spent = {field.name: getattr(timeline.breakdown, field.name) for field in fields(timeline.breakdown)}
    parts = [f"{name.replace('_', ' ')} {show_seconds(s)} ({s / step:.0%})" for name, s in spent.items() if s and step]
    lines += [", ".join(parts)] if parts else []
    lines += [f"memory of the fullest rank {show_bytes(max(timeline.memory))}"] if timeline.memory else []
    lines += [f"sent by the busiest rank {show_bytes(max(timeline.wire_sent))}"] if any(timeline.wire_sent) else []
    return lines
