"""What verbs return says in a notebook what the command line says, instead of all of a dataclass."""

from __future__ import annotations

from dataclasses import replace

import partita as pt
from partita.report.trained import Trained
from partita.report.verdict import Verdict
from tests.report.timelines import comparison
from tests.small import two_layers

GRAPH = replace(two_layers(), name="two <b>")


def cell(result: object) -> str:
    found = str(getattr(result, "_repr_html_")())  # noqa: B009
    assert found.startswith("<pre")
    assert not [part for part in ("<b>", "http", "\x1b") if part in found]
    return found


def test_a_graph_says_how_large_it_is() -> None:
    assert f"two &lt;b&gt;: {len(GRAPH.operators)} operators" in cell(GRAPH)


def test_a_search_and_a_fit_are_what_the_commands_say() -> None:
    found = pt.search(GRAPH, "h100-dgx", source="datasheet", top=2)
    assert found.best.name in cell(found)
    assert "searched for" in cell(found)
    fits = pt.fit(GRAPH, "h100-dgx")
    assert f"{fits.plan.name} fits h100-dgx, with" in cell(fits)


def test_a_run_and_a_verdict_are_what_the_commands_say() -> None:
    timeline = comparison().rows[0].measured or comparison().rows[0].predicted
    assert timeline is not None
    done = Trained(pt.Plan("ddp"), timeline, (), 0.25, 9, "run/model.safetensors")
    assert "final loss 0.25 after 9 steps" in cell(done)
    equal = Verdict(True, "exact", 0.0, 1e-9, "serial training", 1e-7, 1e-7)
    assert "the plan is equal (exact): 0 apart from serial training" in cell(equal)
    assert "the plan is not equal" in cell(replace(equal, equal=False))
