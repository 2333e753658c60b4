"""What a comparison says in words, by hand: by how much it missed, who was first, who never came there."""

from __future__ import annotations

from dataclasses import replace
from math import log
from types import SimpleNamespace

import pytest

from partita.program.timeline import Span
from partita.report.comparison import Comparison, Row, error_of, errors_of, learned, ln_ratio, order, row_of, verdict
from partita.report.spans import packed, thinned
from partita.report.steps import steps_of
from partita.searches.steps_of_plans import MeasuredPlan
from tests.report.timelines import measured, predicted
from tests.small import cluster_of

LOSS = ((0, 0.1, 2.0), (1, 0.2, 1.0))


def row(plan: str, said: float | None, took: float | None) -> Row:
    return Row(
        plan, None if said is None else predicted(plan, said), None if took is None else measured(plan, took)
    )  # fmt: skip


def told(*rows: Row) -> str:
    return verdict(Comparison(rows, "task", cluster_of(2)))


def test_the_verdict_says_by_how_much_and_where_the_prediction_missed() -> None:
    """Twice as long and an eighth less: on average exp((ln 2 + ln 8/7) / 2) - 1, most where it took twice as long."""
    said = told(row("a", 0.5, 1.0), row("b", 0.8, 0.7), row("c", 0.2, None))
    assert said.startswith("c is fastest at 200 ms a step, 3.50 times as fast as b and 5.00 times as fast as a. ")
    assert ". Computing binds it: " in said  # of what was predicted alone
    assert "The prediction missed by 51.2% on average, most for a, which took 2.00 times as long as predicted" in said
    assert "The prediction ranked the plans otherwise than they ran" in said
    two = told(row("a", 0.5, 1.0), row("b", 0.4, 0.8))
    assert two.startswith("b is fastest at 800 ms a step, 1.25 times as fast as a. ")
    assert "Waiting for messages binds it: 37% of the step" in two  # of what was measured
    assert "ranked the plans as they ran" in two
    one = told(row("a", 0.5, 1.0))
    assert one.startswith("a takes 1 s a step. ")
    assert "The prediction missed by 100.0% on average." in one
    assert told(Row("a", error="no")) == "No plan could be timed."


def test_errors_are_ordered_by_their_size() -> None:
    rows = [row("long", 2.0, 1.0), row("short", 1.0, 8.0), row("right", 1.0, 1.0), row("unrun", 1.0, None)]
    assert errors_of(rows) == [(pytest.approx(-log(8)), "short"), (pytest.approx(log(2)), "long"), (0.0, "right")]
    assert (error_of(rows[0]), error_of(rows[3]), ln_ratio(rows[3])) == (1.0, None, None)
    assert ln_ratio(row("nothing", 0.0, 1.0)) is None
    assert error_of(row("still", 1.0, 0.0)) is None
    assert order([rows[0], rows[3]]) == []


def test_a_row_is_the_median_of_its_repeats_with_the_spans_of_the_middle_one() -> None:
    """Repeats of 0.9, 0.4, 0.5 and 0.7 s: 0.6 s, of which as much is waited for as in the repeat of 0.7 s."""
    results = [
        SimpleNamespace(timeline=replace(measured("ddp", step), wire_sent=(k,)), loss=LOSS, final_loss=float(k))
        for k, step in enumerate((0.9, 0.4, 0.5, 0.7))
    ]
    run = SimpleNamespace(
        error="", results=results, memory=(), semantics="exact", over=(),
        middle=SimpleNamespace(timeline=predicted(), naive={"sum": 0.3}),
    )  # fmt: skip
    found = row_of("ddp", run, 1.5)
    assert found.measured is not None
    assert (found.measured.step_seconds, found.measured.low, found.measured.high, found.measured.n) == (
        0.6,
        0.4,
        0.9,
        4,
    )
    assert found.measured.wire_sent == (3,)
    assert found.measured.breakdown.exposed_communication == pytest.approx(0.3 * 0.6 / 0.7)
    assert (found.final_loss, len(found.losses), found.steps_to_target) == (0.0, 4, 2)
    assert row_of("ddp", SimpleNamespace(error="no such"), None) == Row("ddp", error="no such")


def test_who_reached_a_loss_and_who_did_not() -> None:
    there = [
        replace(row(plan, 1.0, 1.0), loss=LOSS, target_loss=1.5, seconds_to_target=at, steps_to_target=steps)
        for plan, at, steps in (("slow", 3.0, 4), ("quick", 2.0, 7), ("never", None, None))
    ]
    assert learned([*there, replace(row("unrun", 1.0, None), target_loss=1.5)]) == [
        "quick reached the target loss first, after 2 s", "Steps to it: slow 4, quick 7",
        "never did not reach 1.5 within 2 steps",
    ]  # fmt: skip
    found = steps_of(Comparison((*there, Row("unrun", predicted("unrun"), target_loss=1.5)), "task", cluster_of(2)))
    assert found.plans == (MeasuredPlan("slow", 4), MeasuredPlan("quick", 7))
    assert (found.never, found.target, found.within, found.batch, found.devices) == (("never",), 1.5, 2, 8, 2)


def spans(rank: int, count: int, round_: int = 0, kind: str = "Compute", begin: float = 0.0) -> tuple[Span, ...]:
    return tuple(
        Span(rank, "compute", f"{kind}{i}", kind, round_, begin + i, begin + i + 0.1 * (i + 1)) for i in range(count)
    )


def test_small_timelines_leave_their_share_to_large_ones() -> None:
    large, small = replace(measured(), spans=spans(0, 9)), replace(measured(), spans=spans(0, 2))
    shown = thinned([large, small], 8)
    assert [len(each.spans) for each in shown] == [6, 2]
    assert [span.name for span in shown[0].spans] == [f"Compute{i}" for i in (8, 7, 6, 5, 4, 3)]
    assert shown[0].words == "ddp, measured: its last round, its longest instructions (6 of 9 instructions)."
    assert shown[1].words == ""
    assert [len(each.spans) for each in thinned([large, large], 8)] == [4, 4]


def test_of_too_many_the_last_round_and_its_first_ranks_are_shown() -> None:
    several = replace(measured(), spans=(*spans(0, 3), *spans(0, 3, 1), *spans(1, 3, 1), *spans(2, 3, 1)))
    (shown,) = thinned([several], 7)
    assert {(span.rank, span.round) for span in shown.spans} == {(0, 1), (1, 1)}
    assert shown.words == "ddp, measured: its last round on 2 of 3 ranks (6 of 12 instructions)."


def test_two_sides_begin_where_the_first_round_that_both_have_computes() -> None:
    """Not where it loads, nor in a round that one side has not."""
    longer = (*spans(0, 1, 4, begin=1.0), *spans(0, 1, 5, "Load", 2.0), *spans(0, 1, 5, begin=3.0))
    shorter = (*spans(0, 1, 8, "Load", 6.0), *spans(0, 1, 8, begin=6.5))
    assert [side["zero"] for side in packed([longer, shorter])] == [3.0, 6.5]
    assert [side["last"] for side in packed([longer, shorter])] == [5, 8]
    assert packed([longer, ()])[0]["zero"] == 1.0
