"""Plans over bandwidths as one drawing: rules stand where another plan becomes the quickest."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from partita.report.answers import comparison_answer
from partita.report.comparison import Comparison, Row
from partita.report.map import Line, Plot, map_about, map_lines, map_svg, ticks, turns
from partita.report.page import comparison_page
from partita.report.record import read_record, write_record
from tests.report.timelines import comparison, measured, predicted
from tests.small import cluster_of

SENDS, KEEPS = ((1e6, 8.0), (1e7, 2.0), (1e8, 0.5)), ((1e6, 2.0), (1e7, 1.0), (1e8, 1.0))
SPACE = "{http://www.w3.org/2000/svg}"


def lines() -> tuple[Line, ...]:
    return (Line("<b>ddp</b>", SENDS, ((1e7, 2.5), (1e8, 0.4))), Line("codec", KEEPS, ((1e7, 1.1), (1e8, 1.2)), 1))


def rows() -> Comparison:
    """Two plans that were predicted at three bandwidths, the first of which reached a loss in the time of two steps."""
    ddp = Row("ddp", predicted(), measured(), seconds_to_target=0.8, over=SENDS)
    return Comparison((ddp, Row("codec", predicted(), measured(), over=KEEPS)), "t", cluster_of(2))


def test_rules_and_rings_stand_where_the_quickest_plan_changes() -> None:
    svg = ElementTree.fromstring(map_svg(lines(), "seconds a step"))
    plot = Plot(1e6, 1e8, 0.4, 8.0)
    (rule,) = (path for path in svg.iter(f"{SPACE}path") if path.get("class") == "turn")
    assert float(str(rule.get("d"))[1:].split()[0]) == pytest.approx(plot.x(10**7.5), abs=0.1)
    (ring,) = (circle for circle in svg.iter(f"{SPACE}circle") if circle.get("class") == "ring")
    assert plot.x(1e7) < float(str(ring.get("cx"))) < plot.x(10**7.5)
    dots = [circle for circle in svg.iter(f"{SPACE}circle") if circle.get("class") == "full"]
    assert [float(str(dot.get("cx"))) for dot in dots] == pytest.approx([plot.x(1e7), plot.x(1e8)] * 2, abs=0.1)
    assert "<b>ddp</b>" in [text.text for text in svg.iter(f"{SPACE}text")]
    assert turns(lines()) == "codec, <b>ddp</b> from 253 Mbit/s"


def test_one_point_is_drawn_too() -> None:
    svg = map_svg([Line("ddp", ((1e6, 1.0),))], "seconds a step")
    assert "nan" not in svg
    assert turns([]) == ""
    assert ticks(1e6, 1e9) == pytest.approx([1e6, 1e7, 1e8, 1e9])
    assert ticks(30.0, 300.0) == pytest.approx([50.0, 100.0, 200.0])


def test_with_a_target_the_lines_are_of_the_time_to_it() -> None:
    found = rows()
    (line,) = map_lines(found)
    assert line.predicted == tuple((at, 2 * seconds) for at, seconds in SENDS)
    assert map_about(found) == "to the target loss"
    without = replace(found, rows=tuple(replace(row, seconds_to_target=None) for row in found.rows))
    assert [each.predicted for each in map_lines(without)] == [SENDS, KEEPS]
    assert [each.measured for each in map_lines(without)] == [((1.25e8, 0.4),)] * 2
    assert map_about(without) == "a step"


def test_it_stands_on_the_page_in_the_record_and_in_words(tmp_path: Path) -> None:
    found = replace(rows(), rows=tuple(replace(row, seconds_to_target=None) for row in rows().rows))
    page = comparison_page(found)
    assert "<b>Figure 7.</b>" in page
    assert "codec, ddp from 253 Mbit/s" in page
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", page)
    assert "Figure 7" not in comparison_page(comparison())
    write_record(found, tmp_path / "r")
    assert read_record(tmp_path / "r") == found
    answer = comparison_answer(found)
    assert "the quickest a step, by bandwidth: codec, ddp from 253 Mbit/s" in answer.text
    assert answer.body["rows"][0]["sweep"] == {
        "over": "bandwidth", "rows": [{"bandwidth": at, "step_seconds": s} for at, s in SENDS]
    }  # fmt: skip
    assert "sweep" not in comparison_answer(comparison()).body["rows"][0]
