"""What verbs return says in a notebook what the command line says, instead of all of a dataclass."""

from __future__ import annotations

import re
from dataclasses import replace

import partita as pt
from partita.report.answers import graph_answer
from partita.report.comparison import verdict
from partita.report.trained import Trained
from partita.report.verdict import Verdict
from partita.zoo.tasks import built_in
from tests.report.timelines import comparison
from tests.small import cluster_of, two_layers

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
    assert "after 9 steps, of 64 held-out samples" in cell(replace(done, judged="64 held-out samples"))
    equal = Verdict(True, "exact", 0.0, 1e-9, "serial training", 1e-7, 1e-7)
    assert "the plan is equal (exact): 0 apart from serial training" in cell(equal)
    assert "the plan is not equal" in cell(replace(equal, equal=False))


def test_results_are_one_line_in_a_list_and_print_as_the_command_says() -> None:
    found = pt.search(GRAPH, "h100-dgx", source="datasheet", top=2)
    fits, timeline, compared = pt.fit(GRAPH, "h100-dgx"), pt.simulate(GRAPH, "ddp", cluster_of(4)), comparison()
    done = Trained(found.best, timeline, (), 0.25, 9, "run/model.safetensors")
    task = built_in("digits-cnn")
    for one in (GRAPH, found, found.best, found.candidates[0], fits, timeline, compared, done, cluster_of(4), task):
        assert re.fullmatch(r"<.{9,200}>", repr(one)), repr(one)
    assert repr(GRAPH).startswith("<Graph two <b>: ")
    assert "not traced: it branches" in repr(replace(GRAPH, rung="opaque", blind="it branches"))
    assert found.best.name in repr(found)
    for one, said in (
        (found, "searched for"), (fits, "fits h100-dgx, with"), (done, "final loss 0.25 after 9 steps"),
        (compared, verdict(compared).split(".")[0]),
    ):  # fmt: skip
        assert said in " ".join(str(one).split())
        assert not {"\x1b", "<b>"} & {*str(one).split()}


def test_a_captured_graph_is_told_in_a_practitioners_words() -> None:
    said = "\n".join(graph_answer(GRAPH, "graph.json").text)
    assert not [word for word in ("rung", "blind", "symbolic", "dispatch", "True") if word in said]
    assert "any number of samples" in said
    one = replace(GRAPH, rung="opaque", blind="it branches on values")
    told = "since it cannot be traced: it branches on values. Nothing inside it is seen, and only its samples can be"
    assert told in "\n".join(graph_answer(one, None).text)
    few = replace(GRAPH, symbolic=False, blind="groups of four")
    assert f"{few.batch} samples only; groups of four" in "\n".join(graph_answer(few, None).text)
