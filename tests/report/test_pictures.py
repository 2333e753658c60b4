from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.console import Console
from rich.table import Table

from partita.cluster.cluster import Device
from partita.errors import OptionError
from partita.plan.plan import Plan
from partita.program.timeline import Timeline
from partita.recipes.catalogue import RECIPES
from partita.report.answers import trained_answer
from partita.report.comparison import Comparison, Row, unreached, verdict
from partita.report.json import row_body
from partita.report.page import cells
from partita.report.setting import Setting
from partita.report.steps import steps_of
from partita.report.svg import timeline_svg
from partita.report.table import comparison_table, recipes_table, refusals, search_table, timeline_table
from partita.report.trace import write_trace
from partita.report.trained import Trained
from partita.searches.candidate import Candidate
from partita.searches.search import Search
from partita.searches.steps_of_plans import MeasuredPlan
from partita.telling import printable
from tests.report.nine import nine
from tests.report.timelines import comparison, measured, predicted
from tests.small import cluster_of


def drawn(table: Table, width: int = 200) -> str:
    out = io.StringIO()
    Console(file=out, width=width).print(table)
    return out.getvalue()


@pytest.fixture
def events(tmp_path: Path) -> list[dict[str, object]]:
    write_trace([predicted(), measured()], tmp_path / "trace.json")
    found: list[dict[str, object]] = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    return found


def test_prediction_and_measurement_share_track_names(events: list[dict[str, object]]) -> None:
    tracks: dict[object, set[object]] = {1: set(), 2: set()}
    for event in events:
        if event["name"] == "thread_name":
            tracks[event["pid"]].add(str(event["args"]))
    assert len(tracks[1]) == 3
    assert tracks[2] < tracks[1]


def test_spans_start_at_zero_in_microseconds(events: list[dict[str, object]]) -> None:
    spans = [event for event in events if event["ph"] == "X" and event["pid"] == 1]
    assert [(s["ts"], s["dur"]) for s in spans] == [(0, 250_000), (250_000, 250_000), (125_000, 375_000)]
    assert spans[1]["args"] == {"kind": "Collective", "rank": 0, "lane": "wire", "round": 4, "seconds": 0.25}


def test_memory_is_a_counter_of_each_rank(events: list[dict[str, object]]) -> None:
    assert [e["args"] for e in events if e["ph"] == "C" and e["pid"] == 1] == [{"bytes": 2048}, {"bytes": 4096}]


def test_a_trace_that_cannot_be_written_is_the_users_to_mend(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="cannot be written"):
        write_trace([predicted()], tmp_path / "absent" / "trace.json")


def test_the_table_shows_both_sides_and_no_escapes() -> None:
    text = drawn(comparison_table(comparison()))
    for part in ("500 ms", "400 ms (390 ms to 410 ms, n=3)", "+25.0%", "sum -25.0%", "4 KiB", "300 B", "not run"):
        assert part in text
    assert "\x1b" not in text
    assert refusals(comparison()) == ("x(<b>\ufffd[31m): no recipe <x>",)


def test_unprintable_letters_are_replaced() -> None:
    assert printable("a\x1b[2Jb\nc é") == "a\ufffd[2Jb\ufffdc é"


def test_every_recipe_has_a_line() -> None:
    text = drawn(recipes_table(RECIPES))
    assert all(name in text for name in RECIPES)


def test_a_finished_run_says_no_memory_that_was_not_measured_and_no_note_twice() -> None:
    done = Trained(Plan("ddp"), replace(predicted(), memory=()), (), 0.5, 3, "", ("told while it ran",))
    answer = trained_answer(done)
    assert answer.body["notes"] == ("told while it ran",)
    assert "told while it ran" not in answer.text
    assert "peak memory" not in drawn(answer.text[0])
    assert "peak memory" in drawn(timeline_table(predicted()))


def test_a_timeline_shows_the_parts_that_took_time() -> None:
    text = drawn(timeline_table(predicted()))
    assert "backward" in text
    assert "250 ms (50%)" in text
    assert "codec" not in text


@pytest.mark.parametrize("width", [40, 80, 200])
def test_numbers_stand_in_one_piece_however_narrow_the_terminal(width: int) -> None:
    """Where the columns do not fit, they stand in tables below each other, each with the plans' names; where these
    would be more than three, a row is a block, in which every number has its whole name."""
    found = drawn(comparison_table(nine()), width)
    lines = [line.rstrip() for line in found.splitlines()]
    assert max(map(len, lines)) <= width
    for number in ("32.8 ms", "+19.0%", "4.27 MiB", "sum +20.0%", "max -40.0%", "1.001"):
        assert number in found
    blocks = [line.split("  ")[0] for line in lines if line.startswith(("memory", "wire"))]
    names = ["memory predicted", "memory measured", "wire predicted", "wire measured"]
    assert blocks == (names * 8 if width == 40 else [])
    assert [line.startswith(" plan") or line.startswith("plan") for line in lines].count(True) == {
        200: 1, 80: 3, 40: 9,
    }[width]  # fmt: skip
    assert "pipe_sgd(staleness=1)" in found


def test_a_ranking_on_a_narrow_terminal_counts_its_blocks() -> None:
    plans = (Candidate(Plan("ddp"), predicted(), "exact", True), Candidate(Plan("single"), predicted(), "exact", True))
    found = drawn(search_table(Search(plans, 0.1, 0.2, 1.5, "words")), 24)
    assert [line.split() for line in found.splitlines() if line.startswith(("place", "plan"))] == [
        ["place", "1"], ["plan", "ddp"], ["place", "2"], ["plan", "single"],
    ]  # fmt: skip


def test_rates_are_written_out_as_on_the_page() -> None:
    """197,282 and not 1.973e+05."""
    quick = predicted(step=8 / 197282)
    search = Search((Candidate(Plan("ddp"), quick, "exact", True),), 0.1, 0.2, 1.5, "words")
    for text in (drawn(timeline_table(quick)), drawn(search_table(search)), shown_page(quick)):
        assert "197,282" in text


def shown_page(timeline: Timeline) -> str:
    return cells(Row("ddp", timeline))["rate"].text


def test_the_ranking_says_what_does_not_fit() -> None:
    search = Search((Candidate(Plan("ddp"), predicted(), "exact", False),), 0.1, 0.2, 1.5, "words")
    assert "no" in drawn(search_table(search)).split()


def test_the_ranking_has_what_a_step_costs_where_devices_have_a_price() -> None:
    search = Search((Candidate(Plan("ddp"), predicted(), "exact", True),), 0.1, 0.2, 1.5, "words")
    ranks = len(predicted().memory)
    priced = drawn(search_table(search, (Device(price=3.6),) * ranks))
    assert "dollars a step" in priced
    assert f"{ranks * predicted().step_seconds * 1e-3:.3g}" in priced.split()
    for some in ((), (Device(price=3.6),) * (ranks - 1) + (Device(),)):
        assert "dollars" not in drawn(search_table(search, some))


def test_the_verdict_names_the_fastest_the_bound_and_the_worst_miss() -> None:
    assert verdict(comparison()) == (
        "ddp is fastest at 400 ms a step, 2.50 times as fast as slow. Waiting for messages binds it: 75% of the step. "
        "The prediction ranked the plans as they ran. "
        "The prediction missed by 17.9% on average, most for ddp, which took 0.80 times as long as predicted. "
        "ddp reached the target loss first, after 800 ms."
    )


def test_the_worst_miss_is_not_smaller_than_the_mean() -> None:
    """However the error is turned into words: a prediction of a quarter of the step misses by 300 %."""
    rows = (Row("near", predicted(step=0.4), measured()), Row("far", predicted(step=0.1), measured()))
    said = verdict(replace(comparison(), rows=rows))
    assert said.endswith("missed by 100.0% on average, most for far, which took 4.00 times as long as predicted.")
    assert verdict(replace(comparison(), rows=rows[1:])).endswith("missed by 300.0% on average.")


def test_the_verdict_of_one_plan_compares_it_with_none() -> None:
    alone = replace(comparison(), rows=(Row("ddp", None, measured()),))
    assert verdict(alone).startswith("ddp takes 400 ms a step. Waiting for messages")


def test_a_target_that_was_not_reached_is_said() -> None:
    """In the verdict and in the table's line; not of plans that did not run."""
    first, *rest = comparison().rows
    asked = replace(comparison(), rows=(replace(first, seconds_to_target=None), *rest))
    assert "did not reach" not in verdict(asked)
    asked = replace(asked, rows=tuple(replace(row, target_loss=-5.0) for row in asked.rows))
    assert verdict(asked).endswith(". ddp did not reach -5 within 3 steps.")
    assert unreached(asked.rows[0])
    assert not unreached(asked.rows[1])
    assert "target not reached" in " ".join(drawn(comparison_table(asked)).split())


def test_how_many_steps_each_took_to_the_target_is_said_and_written() -> None:
    """In the verdict, in the row's JSON, and in what `plan --steps-to-loss` reads."""
    first, *rest = comparison().rows
    asked = replace(first, target_loss=0.5, steps_to_target=2)
    late = replace(first, plan="late", target_loss=0.5, seconds_to_target=None)
    found = replace(comparison(), rows=(asked, late, *rest), setting=Setting(task="the task"))
    assert "ddp reached the target loss first, after 800 ms. Steps to it: ddp 2. late did not reach" in verdict(found)
    assert row_body(asked, Setting())["steps_to_target"] == 2
    steps = steps_of(found)
    assert (steps.target, steps.plans, steps.never) == (0.5, (MeasuredPlan("ddp", 2),), ("late",))
    assert (steps.task, steps.devices, steps.batch) == ("the task", found.cluster.size, measured().batch)
    assert steps.within == len(first.loss)


def test_the_verdict_of_nothing() -> None:
    assert verdict(Comparison((Row("a", error="no"),), "t", cluster_of(1))) == "No plan could be timed."


def test_the_drawing_is_valid_and_has_both_sides_of_the_shared_rounds() -> None:
    root = ElementTree.fromstring(timeline_svg(comparison().rows[0]))
    space = "{http://www.w3.org/2000/svg}"
    assert [element.text for element in root.iter(f"{space}title")] == [
        "F (Compute): 250 ms", "A0 (Collective): 250 ms", "F<&> (Compute): 375 ms", "F (Compute): 250 ms",
        "A0 (Collective): 250 ms",
    ]  # fmt: skip
    words = [element.text for element in root.iter(f"{space}text")]
    assert words[0] == "ddp: predicted 500 ms, measured 400 ms a step"
    assert words[1:3] == ["forward", "messages"]
    assert words[3:6] == ["rank 0 compute", "rank 0 wire", "rank 1 compute"]


def test_a_row_without_spans_is_drawn_as_words() -> None:
    text = timeline_svg(Row("a<b", Timeline("a<b", "simulated", 1.0, 8)))
    assert [e.text for e in ElementTree.fromstring(text).iter("{http://www.w3.org/2000/svg}text")] == [
        "a<b: predicted 1 s a step"
    ]
