"""The page as text: what it says, that names stay names, that it stays small."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from partita.program.timeline import Span, Timeline
from partita.report import page
from partita.report.comparison import Comparison, Row
from partita.report.environment import Environment
from partita.report.figures import figures, loss_of, traffic_of
from partita.report.page import MOST_BYTES, bar, comparison_page, embedded, write_page
from partita.report.spans import packed, thinned
from partita.report.words import findings
from tests.report.nine import nine
from tests.report.timelines import comparison, measured, predicted
from tests.small import cluster_of


class Elements(HTMLParser):
    """Tags and their attributes, and the text of the data element."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.data, self.inside = "", False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.inside = tag == "script" and dict(attrs).get("id") == "data"

    def handle_data(self, data: str) -> None:
        self.data += data if self.inside else ""

    def handle_endtag(self, tag: str) -> None:
        self.inside = False


def test_every_name_is_escaped_and_every_row_there(tmp_path: Path) -> None:
    write_page(nine(), tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    found = Elements(text)
    assert text == comparison_page(nine())
    assert "bytes-gpt &lt;&amp;&gt;" in text
    assert [tag for tag, _ in found.tags].count("script") == 2
    assert "<b>4" not in text
    assert "stages need &lt;b&gt;4&lt;/b&gt; cuts &amp; this model has &lt;/script&gt; 2" in text
    assert len([a for tag, a in found.tags if tag == "tr" and "data-place" in a]) == 9
    rows = json.loads(found.data)["rows"]
    assert [row["plan"] for row in rows] == [row.plan for row in nine().rows]


EVIL = "</script><img src=x onerror=alert(1)>'\"{{ 7 * 7 }}\u202egnp\u2066\x1b]0;t\x07\x9b2J"


def test_names_by_another_hand_change_nothing_but_their_own_place() -> None:
    """Wherever a text stands, it is shown as text: no element, no attribute, no escape, no change of direction."""
    base = nine(rounds=1, instructions=1)
    row = base.rows[1]
    assert row.predicted is not None
    assert row.measured is not None
    span = replace(row.predicted.spans[0], name=EVIL, lane=EVIL)
    sides = {
        side: replace(t, plan=EVIL, spans=(span,)) for side in ("predicted", "measured") if (t := getattr(row, side))
    }
    evil = replace(row, plan=EVIL, semantics=EVIL, naive={EVIL: 1.0}, over=((1e8, 1.0), (1e9, 2.0)), **sides)
    rows = (evil, Row(EVIL, error=EVIL, semantics=EVIL))
    told = Environment(EVIL, EVIL, EVIL, EVIL, ((EVIL, EVIL),), EVIL)
    cluster = replace(base.cluster, name=EVIL)
    text = comparison_page(Comparison(rows, EVIL, cluster, (EVIL,), told))
    assert {letter for letter in text if not letter.isprintable()} == {"\n"}
    found = Elements(text)
    assert not {tag for tag, _ in found.tags} & {"img"}
    assert not [a for _, attributes in found.tags for a in attributes if a.startswith("on")]
    assert [tag for tag, _ in found.tags].count("script") == 2
    assert json.loads(found.data)["rows"][0]["plan"].startswith("</script><img")
    assert "{{ 7 * 7 }}" in text


def test_it_asks_the_network_for_nothing() -> None:
    text = comparison_page(nine())
    for _, attributes in Elements(text).tags:
        assert not any(str(attributes.get(key) or "").startswith(("http", "//")) for key in ("src", "href", "action"))
    assert re.findall(r"https?://[^\"' )]+", text) == ["http://www.w3.org/2000/svg"]
    assert not re.search(r"\beval\(|innerHTML|new Function|insertAdjacentHTML|document\.write", text)


def test_a_notebook_shows_what_the_command_line_says() -> None:
    """Instead of the dataclass with all its spans."""
    cell = comparison()._repr_html_()
    assert cell.startswith("<pre")
    assert "predicted" in cell
    assert "ddp is fastest at 400 ms a step" in cell
    assert "x(&lt;b&gt;" in cell
    assert not [found for found in ("<b>", "http", "\x1b") if found in cell]


def test_pages_may_link_to_each_other() -> None:
    found = Elements(comparison_page(comparison(), {"a <b>": "a.html"}))
    assert ("a", {"href": "a.html"}) in found.tags
    assert not [tag for tag, _ in Elements(comparison_page(comparison())).tags if tag == "a"][1:]


def test_scripts_and_styles_keep_to_the_width_of_the_rest() -> None:
    found = [path for path in (Path(page.__file__).parent / "web").iterdir() if path.suffix in (".js", ".css")]
    assert len(found) == 8
    wide = [f"{p.name}:{i}" for p in found for i, line in enumerate(p.read_text().splitlines(), 1) if len(line) > 120]
    assert not wide
    assert not [p.name for p in found if len(p.read_text().splitlines()) > 320]


def test_data_cannot_end_its_element() -> None:
    value = {"a": "</script><!-- & \u2028 \u202e \ud800", "b": [float("nan"), float("inf"), 1 / 3]}
    text = str(embedded(value))
    assert not set(text) & set("<>&\u2028\u2029")
    assert json.loads(text) == {"a": "</script><!-- & \ufffd \ufffd \ufffd", "b": [None, None, 0.3333333]}


def test_a_large_comparison_is_thinned_and_says_so() -> None:
    text = comparison_page(nine(rounds=6, instructions=300))
    assert len(text.encode()) < MOST_BYTES
    assert "pipe_sgd(staleness=1), measured: its last round" in text
    assert "of 28,848 instructions" in text
    assert "instructions)" not in comparison_page(nine())


@pytest.mark.parametrize("rows", [(), (Row("a", error="no"),), (Row("a"),), (Row("a", predicted()),)])
def test_little_is_enough_for_a_page(rows: tuple[Row, ...]) -> None:
    text = comparison_page(Comparison(rows, "t", cluster_of(1)))
    assert json.loads(Elements(text).data)["rows"] == figures(Comparison(rows, "t", cluster_of(1)), 100)[0]


def spans(rounds: int, ranks: int, each: int) -> tuple[Span, ...]:
    return tuple(
        Span(rank, "compute", f"i{i}", "Compute", t, t + i / each, t + (i + 1) / each)
        for rank in range(ranks) for t in range(rounds) for i in range(each)
    )  # fmt: skip


def timeline(rounds: int, ranks: int, each: int) -> Timeline:
    return Timeline("p", "measured", 1.0, 8, spans(rounds, ranks, each))


@pytest.mark.parametrize(
    ("most", "left", "words"),
    [
        (240, 240, ""),
        (239, 120, "p, measured: its last round (120 of 240 instructions)."),
        (119, 90, "p, measured: its last round on 3 of 4 ranks (90 of 240 instructions)."),
        (20, 20, "p, measured: its last round on 1 of 4 ranks, its longest instructions (20 of 240 instructions)."),
        (0, 0, "p, measured: its last round on 1 of 4 ranks, its longest instructions (0 of 240 instructions)."),
    ],
)
def test_thinning_leaves_out_the_least_useful_first(most: int, left: int, words: str) -> None:
    (found,) = thinned([timeline(2, 4, 30)], most)
    assert (len(found.spans), found.words) == (left, words)


def test_small_timelines_leave_their_share_to_large_ones() -> None:
    found = thinned([timeline(2, 4, 30), timeline(1, 1, 10)], 250)
    assert [len(each.spans) for each in found] == [240, 10]


def test_both_sides_begin_with_the_first_round_that_they_share() -> None:
    early = spans(3, 1, 2)
    late = tuple(replace(span, start=span.start + 90, end=span.end + 90, round=span.round + 7) for span in early[2:])
    one, other = packed([early, late])
    assert one["spans"] == [
        0,
        0,
        1,
        0,
        250_000,
        0,
        1,
        1,
        250_000,
        250_000,
        0,
        0,
        2,
        500_000,
        250_000,
        0,
        1,
        2,
        750_000,
        250_000,
    ]
    assert other["spans"][3::5] == one["spans"][3::5]
    assert (one["last"], other["last"], one["unit"]) == (2, 9, 2 / 1_000_000)
    assert packed([(), late])[0]["spans"] == []


def test_loading_ahead_does_not_move_the_beginning() -> None:
    early = (Span(0, "data", "load", "Load", 0, -5.0, -4.0), *spans(1, 1, 2))
    (found,) = packed([early])
    assert found["spans"][3::5] == [0, 500_000, -5_000_000]


def test_spans_that_take_no_time_are_packed() -> None:
    (found,) = packed([(Span(0, "compute", "F", "Compute", 0, 2.0, 2.0),)])
    assert found["spans"] == [0, 0, 0, 0, 0]


def test_bands_are_the_range_of_the_repeats() -> None:
    losses = (((0, 1.0, 4.0), (1, 2.0, 2.0)), ((0, 1.5, 6.0), (1, 3.0, 3.0)), ((0, 1.0, 5.0), (1, 2.0, float("nan"))))
    found = loss_of(Row("a", None, measured(), loss=losses[0], losses=losses))
    assert found is not None
    assert found["samples"] == [[8, 5.0, 4.0, 6.0]]
    assert found["seconds"] == [[1.0, 5.0, 4.0, 6.0]]
    assert found["repeats"] == 3


def test_steps_that_end_together_are_one_moment() -> None:
    found = loss_of(Row("a", None, measured(), loss=((0, 2.0, 4.0), (1, 2.0, 3.0), (2, 4.0, 2.0))))
    assert found is not None
    assert found["seconds"] == [[2.0, 3.0, 3.0, 3.0], [4.0, 2.0, 2.0, 2.0]]


def test_long_curves_are_means_of_stretches() -> None:
    curve = tuple((i, float(i), float(i)) for i in range(960))
    found = loss_of(Row("a", None, measured(), loss=curve))
    assert found is not None
    assert found["samples"][0] == [32, 1.5, 1.5, 1.5]
    assert len(found["seconds"]) == 240


def test_a_wide_traffic_matrix_shows_its_first_ranks() -> None:
    ring = tuple((rank, (rank + 1) % 30, 5) for rank in range(30))
    found = traffic_of(replace(predicted(), traffic=ring, wire_sent=(5,) * 30))
    assert found is not None
    assert (found["ranks"], found["shown"], len(found["cells"])) == (30, 24, 23)


def test_bars_share_one_scale() -> None:
    found = bar(predicted(), 1.0)
    assert found.parts == (("forward 100 ms", "forward", 0.0, 10.0), ("backward 250 ms", "backward", 10.0, 25.0),
                           ("exposed communication 150 ms", "messages", 35.0, 15.0))  # fmt: skip
    assert found.words == "predicted: forward 100 ms, backward 250 ms, exposed communication 150 ms"


def test_findings_in_words() -> None:
    found = {finding.about: finding.text for finding in findings(nine())}
    assert list(found) == ["Result", "Limit", "Prediction", "Memory", "Learning", "Not exact", "Not run", "Caveats"]
    assert found["Result"] == (
        "local_sgd(period=4) is fastest: it took 14.9 ms a step (14.5 ms to 15.5 ms in 3 repeats), 1.29 times as fast "
        "as ssp(staleness=3) (1.20 to 1.38) and 2.67 times as fast as ps_sync (2.49 to 2.86)."
    )
    assert found["Prediction"].startswith(
        "Made before the runs, it missed the step by 10% on average (mean |ln p/m| 0.093)"
    )
    assert "sum (computing plus communication) by 53%, max (the larger of the two) by 43%" in found["Prediction"]
    assert "Consensus (replicas are trained apart and averaged): local_sgd(period=4). " in found["Not exact"]
    assert found["Caveats"].startswith("Network namespaces are refused here")


def test_findings_do_not_compare_unlike_numbers_of_steps() -> None:
    """A plan whose rounds are of several steps takes more of them."""

    def learning(*steps: int) -> str:
        rows = tuple(
            Row(str(i), None, measured(), loss=((0, 0.0, 2.0),) * taken, final_loss=1.0 + i)
            for i, taken in enumerate(steps)
        )
        return next(each.text for each in findings(Comparison(rows, "t", cluster_of(1))) if each.about == "Learning")

    assert learning(13, 13) == "After equally many steps the loss is 1 (0) to 2 (1)."
    assert learning(13, 16, 13) == "After 13 to 16 steps (rounds are of several) the loss is 1 (0) to 3 (2)."


def test_the_name_of_a_plan_is_not_changed_where_a_sentence_begins() -> None:
    found = replace(comparison(), notes=("ddp: its codec never pays", "more work beside"))
    said = next(finding.text for finding in findings(found) if finding.about == "Caveats")
    assert said.startswith("ddp: its codec never pays. More work beside.")


def test_findings_say_when_nothing_is_settled() -> None:
    close = (Row("a", None, measured("a", 0.4)), Row("b", None, measured("b", 0.4)))
    assert "overlap" in findings(Comparison(close, "t", cluster_of(1)))[0].text
    once = {
        f.about: f.text for f in findings(Comparison((Row("a", None, replace(measured(), n=1)),), "t", cluster_of(1)))
    }
    assert once["Caveats"].startswith("Each plan ran once")
    lost = {f.about: f.text for f in findings(comparison())}
    assert "The loss of ddp left the numbers" in lost["Caveats"]
    only = {f.about: f.text for f in findings(Comparison((Row("a", predicted()),), "t", cluster_of(1)))}
    assert only["Result"] == "a is predicted to take 500 ms a step."
    assert only["Caveats"] == "Nothing was run: all times are predictions."
