"""Timelines and a comparison by hand."""

from __future__ import annotations

from partita.program.timeline import Breakdown, Span, Timeline
from partita.report.comparison import Comparison, Row
from tests.small import cluster_of

SPANS = (
    Span(0, "compute", "F", "Compute", 3, 10.0, 10.25),
    Span(0, "wire", "A0", "Collective", 4, 10.25, 10.5),
    Span(1, "compute", "F<&>", "Compute", 4, 10.125, 10.5),
)


def predicted(plan: str = "ddp", step: float = 0.5) -> Timeline:
    return Timeline(
        plan, "simulated", step, 8, SPANS, memory=(2048, 4096), wire_sent=(100, 300),
        breakdown=Breakdown(forward=0.1, backward=0.25, exposed_communication=0.15),
    )  # fmt: skip


def measured(plan: str = "ddp", step: float = 0.4) -> Timeline:
    return Timeline(
        plan, "measured", step, 8, SPANS[:2], memory=(2048, 4000), wire_sent=(100, 300),
        breakdown=Breakdown(exposed_communication=0.3, forward=0.1), n=3, low=0.39, high=0.41,
    )  # fmt: skip


def comparison() -> Comparison:
    loss = ((0, 0.0, 2.5), (1, 0.4, 1.5), (2, 0.8, float("nan")))
    return Comparison(
        (
            Row("ddp", predicted(), measured(), {"sum": 0.3}, loss, 0.8, 1.25),
            Row("x(<b>\x1b[31m)", error="no recipe <x>"),
            Row("slow", predicted("slow", 0.9), measured("slow", 1.0)),
        ),
        "a <task>", cluster_of(2), ("a note",),
    )  # fmt: skip
