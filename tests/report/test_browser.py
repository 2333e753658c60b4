"""The page in headless Chromium: no complaints, no network, sorting, zoom, themes, narrow windows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from partita.report.comparison import Comparison, Row
from partita.report.page import write_page
from tests.report.browser import CHROMIUM, Browser, browser
from tests.report.nine import nine
from tests.report.timelines import comparison, predicted
from tests.small import cluster_of

pytestmark = [
    pytest.mark.skipif(
        not CHROMIUM, reason="chromium is not installed, so the page is not tried (.ci/run installs it)"
    ),
]
ORDER = "[...document.querySelectorAll('#table tbody tr')].map(row => Number(row.dataset.place))"
WINDOW = "(({low, high}) => [Number(low), Number(high)])(document.getElementById('lanes').dataset)"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "nine.html"
    write_page(nine(), path)
    return path


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as found:
        yield found


def choose(b: Browser, place: int) -> None:
    """The plan whose details are shown."""
    b.evaluate(
        f"(p => {{ p.value = {place}; p.dispatchEvent(new Event('change')); }})(document.getElementById('plan'))"
    )


def click(b: Browser, selector: str) -> None:
    """A real press of the mouse in the middle of an element."""
    place = f"document.querySelector({selector!r})"
    b.evaluate(f"{place}.scrollIntoView({{block: 'center'}})")
    b.click(*b.evaluate(f"(r => [r.x + r.width / 2, r.y + r.height / 2])({place}.getBoundingClientRect())"))
    b.settle()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1280])
def test_it_is_clean_at_every_width_in_both_themes(chromium: Browser, page: Path, width: int, scheme: str) -> None:
    chromium.shape(width, scheme=scheme)
    chromium.open(page)
    assert chromium.complaints() == []
    assert chromium.requests() == [page.as_uri()]
    assert chromium.evaluate("document.documentElement.scrollWidth") == width
    assert chromium.evaluate("document.getElementById('lanes').width") > width / 2
    assert chromium.evaluate("document.querySelectorAll('#pareto circle.full').length") == 8
    assert chromium.evaluate("document.querySelectorAll('#loss-seconds path.band').length") == 8


def test_what_goes_wrong_would_be_seen(chromium: Browser, tmp_path: Path) -> None:
    path = tmp_path / "bad.html"
    path.write_text(
        "<!doctype html><img src='http://localhost:9/x.png'><p style='width:900px'>x</p><script>nonsense()</script>"
    )
    chromium.shape(400)
    chromium.open(path)
    assert any("nonsense is not defined" in said for said in chromium.complaints())
    assert "http://localhost:9/x.png" in chromium.requests()
    assert chromium.evaluate("document.documentElement.scrollWidth") > 400


@pytest.mark.parametrize("change", ["one row", "errors", "prediction", "no repeats", "nothing"])
def test_little_to_show_is_no_error(chromium: Browser, tmp_path: Path, change: str) -> None:
    rows = {
        "one row": nine().rows[1:2], "errors": (Row("a", error="no"),), "prediction": (Row("a", predicted()),),
        "no repeats": comparison().rows, "nothing": (),
    }[change]  # fmt: skip
    write_page(Comparison(rows, "t", cluster_of(2)), tmp_path / "page.html")
    chromium.shape(1280)
    chromium.open(tmp_path / "page.html")
    assert chromium.complaints() == []


LONG = "ddp(bucket_bytes=1048576,first_bucket_bytes=1048576,order=priority,collective=halving_doubling,recompute=full)"


@pytest.mark.parametrize("width", [400, 1280])
def test_long_names_stay_within_the_page(chromium: Browser, tmp_path: Path, width: int) -> None:
    """Nor do they cover each other below the map, whose letters can be read on a narrow screen: it scrolls."""
    rows = tuple(
        replace(row, plan=f"{LONG}{place}", over=((1.25e7, 0.2), (1.25e9, 0.05))) if row.measured else row
        for place, row in enumerate(nine().rows)
    )
    write_page(replace(nine(), rows=rows), tmp_path / "long.html")
    chromium.shape(width)
    chromium.open(tmp_path / "long.html")
    assert chromium.evaluate("document.documentElement.scrollWidth") == width
    boxes = "[...document.querySelectorAll('svg.map g text')].map(each => each.getBoundingClientRect())"
    names = chromium.evaluate(f"{boxes}.map(({{left, right, top, bottom}}) => [left, right, top, bottom])")
    assert len(names) == 8
    for place, (left, right, top, bottom) in enumerate(names):
        for other in names[place + 1 :]:
            apart = other[0] >= right or other[1] <= left or other[2] >= bottom - 2 or other[3] <= top + 2
            assert apart
    assert names[0][3] - names[0][2] >= 8


def test_where_no_plan_ran_the_reason_has_the_table(chromium: Browser, tmp_path: Path) -> None:
    """And nothing is left free for drawings that there are none of."""
    write_page(Comparison((Row("a", error="no " * 99),), "t", cluster_of(2)), tmp_path / "page.html")
    chromium.shape(1280)
    chromium.open(tmp_path / "page.html")
    wide = "(name => document.querySelector(name).getBoundingClientRect().width)"
    assert chromium.evaluate(f"{wide}('td.sentence') / {wide}('#table')") > 0.8
    assert chromium.evaluate("document.getElementById('pareto').clientHeight") < 100
    assert chromium.evaluate("getComputedStyle(document.querySelector('.legend')).display") == "none"


def test_no_name_covers_the_title_of_an_axis(chromium: Browser, tmp_path: Path) -> None:
    """Of the plan that needs most memory, at the left, with another right below it."""

    def between(row: Row, before: float, step: float, memory: int) -> Row:
        assert row.predicted
        assert row.measured
        after = replace(row.measured, step_seconds=step, low=step - 0.004, high=step + 0.008, memory=(memory,))
        return replace(row, measured=after, predicted=replace(row.predicted, step_seconds=before, memory=(memory,)))

    first, second, *rest = nine().rows
    rows = (between(first, 0.008, 0.018, 7_000_000), between(second, 0.011, 0.03, 6_880_000), *rest)
    write_page(replace(nine(), rows=rows), tmp_path / "page.html")
    chromium.shape(400)
    chromium.open(tmp_path / "page.html")
    over = chromium.evaluate("""(() => {
        const [title] = [...document.querySelectorAll('#pareto text')].filter(t => t.textContent.startsWith('peak '));
        const at = title.getBoundingClientRect();
        return [...document.querySelectorAll('#pareto .name')].map(each => each.getBoundingClientRect())
            .filter(box => box.left < at.right && box.right > at.left && box.top < at.bottom - 3
                && box.bottom > at.top + 3).length;
    })()""")
    assert over == 0


def test_headings_sort_and_errors_stay_last(chromium: Browser, page: Path) -> None:
    chromium.shape(1280)
    chromium.open(page)
    measured = [row.measured.step_seconds if row.measured else 9.0 for row in nine().rows]
    rising = sorted(range(9), key=lambda place: measured[place])
    click(chromium, "button[data-sort=measured]")
    assert chromium.evaluate(ORDER) == rising
    assert chromium.evaluate("document.querySelector('th.c-measured').ariaSort") == "ascending"
    click(chromium, "button[data-sort=measured]")
    assert chromium.evaluate(ORDER) == [*reversed(rising[:-1]), 6]
    assert chromium.evaluate("document.querySelector('th.c-measured').ariaSort") == "descending"
    click(chromium, "button[data-sort=ln]")  # by distance from zero
    assert chromium.evaluate(ORDER)[0] == 3
    click(chromium, "button[data-sort=class]")
    assert chromium.evaluate(ORDER) == [4, 3, 0, 1, 2, 5, 7, 8, 6]
    assert chromium.evaluate("document.getElementById('sorted').textContent") == "Sorted by class, rising"


def test_the_timeline_zooms_and_pans(chromium: Browser, page: Path) -> None:
    chromium.shape(1280)
    chromium.open(page)
    choose(chromium, 0)
    low, end = chromium.evaluate(WINDOW)
    assert (low, end > 0.06) == (0, True)
    click(chromium, "[data-do=in]")
    assert chromium.evaluate(WINDOW) == pytest.approx([end / 4, end * 3 / 4])
    click(chromium, "[data-do=right]")
    assert chromium.evaluate(WINDOW) == pytest.approx([end * 3 / 8, end * 7 / 8])
    chromium.evaluate("document.getElementById('lanes').focus()")
    chromium.key("+", "+")
    assert chromium.evaluate(WINDOW) == pytest.approx([end / 2, end * 3 / 4])
    chromium.key("ArrowLeft")
    assert chromium.evaluate(WINDOW) == pytest.approx([end * 7 / 16, end * 11 / 16])
    chromium.key("0", "0")
    assert chromium.evaluate(WINDOW) == pytest.approx([0, end])
    chromium.key(".", ".")
    said = chromium.evaluate("document.getElementById('instruction').textContent")
    assert said.startswith("F0 Compute (forward), rank 0, lane compute, round 7predicted 6.55 ms, from 0 to 6.55 ms")
    assert said.endswith("measured 6.36 ms, from 0 to 6.36 ms; ln p/m +0.03")


def test_the_wheel_and_the_mouse_move_the_timeline(chromium: Browser, page: Path) -> None:
    chromium.shape(1280)
    chromium.open(page)
    chromium.evaluate("document.getElementById('lanes').scrollIntoView({block: 'center'})")
    x, y, wide = chromium.evaluate(
        "(r => [r.x, r.y, r.width])(document.getElementById('lanes').getBoundingClientRect())"
    )
    end = chromium.evaluate(WINDOW)[1]
    wheel = {"type": "mouseWheel", "x": x + wide / 2, "y": y + 40, "deltaX": 0, "deltaY": -200}
    chromium.call("Input.dispatchMouseEvent", **wheel)
    chromium.settle()
    assert chromium.evaluate(WINDOW) == pytest.approx([0, end])  # without focus the wheel is the page's
    chromium.evaluate("document.getElementById('lanes').scrollIntoView({block: 'center'})")
    x, y = chromium.evaluate("(r => [r.x, r.y])(document.getElementById('lanes').getBoundingClientRect())")
    chromium.click(x + wide / 2, y + 40)
    chromium.call("Input.dispatchMouseEvent", **(wheel | {"y": y + 40}))
    chromium.settle()
    low, high = chromium.evaluate(WINDOW)
    assert high - low == pytest.approx(end * 1.0015**-200)
    for kind, at in [("mousePressed", 600), ("mouseMoved", 560), ("mouseMoved", 500), ("mouseReleased", 500)]:
        chromium.call("Input.dispatchMouseEvent", type=kind, x=x + at, y=y + 40, button="left", buttons=1, clickCount=1)
    chromium.settle()
    moved = chromium.evaluate(WINDOW)
    assert moved[1] - moved[0] == pytest.approx(high - low)
    assert moved[0] > low
    chromium.key("0", "0")
    chromium.call("Input.dispatchMouseEvent", type="mouseMoved", x=x + 150 + wide / 25, y=y + 35)
    chromium.settle()
    assert "F0 Compute (forward), rank 0" in chromium.evaluate("document.getElementById('instruction').textContent")


def test_the_chosen_plan_shows_its_memory_and_messages(chromium: Browser, page: Path) -> None:
    chromium.shape(1280)
    chromium.open(page)
    assert chromium.evaluate("document.getElementById('plan').selectedOptions[0].text") == "local_sgd(period=4)"
    choose(chromium, 0)
    assert "No rank sends" in chromium.evaluate("document.getElementById('traffic').textContent")
    choose(chromium, 1)
    assert chromium.evaluate("document.querySelectorAll('#memory path.line').length") == 4
    cells = chromium.evaluate("[...document.querySelectorAll('#traffic td.cell')].map(cell => cell.textContent)")
    assert [i for i, cell in enumerate(cells) if cell] == [1, 6, 11, 12]
    choose(chromium, 2)
    assert chromium.evaluate("document.querySelectorAll('#memory rect').length") == 8
    assert chromium.complaints() == []


def test_predicted_memory_is_stacked_by_what_it_is_for(chromium: Browser, page: Path) -> None:
    """A third of each rank's bytes is parameters and optimizer, the rest activations and gradients; the measured peak
    is a line over it; another rank may be chosen."""
    chromium.shape(400, scheme="dark")
    chromium.open(page)
    choose(chromium, 4)
    named = "[...document.querySelectorAll('#memory path.area')].map(each => each.ariaLabel.split(',')[0])"
    assert chromium.evaluate(named) == ["parameters", "optimizer", "gradients", "activations"]
    keys = "[...document.querySelectorAll('#memory-legend span')].map(each => each.textContent)"
    assert chromium.evaluate(keys) == chromium.evaluate(named)
    level = "document.querySelector('#memory line.peak').ariaLabel"
    assert chromium.evaluate("document.getElementById('rank').value") == "3"
    before = chromium.evaluate(level)
    chromium.evaluate(
        "(each => { each.value = 0; each.dispatchEvent(new Event('change')); })(document.getElementById('rank'))"
    )
    chromium.settle()
    assert "Live bytes of rank 0 " in chromium.evaluate("document.getElementById('memory-words').textContent")
    assert chromium.evaluate("document.querySelectorAll('#memory line.peak').length") == 1
    assert (before, chromium.evaluate(level)) == ("measured peak 3.54 MiB", "measured peak 3.39 MiB")
    choose(chromium, 0)
    assert chromium.evaluate("document.getElementById('rank').parentElement.hidden")
    assert chromium.evaluate(keys) == []
    assert chromium.complaints() == []


def test_the_theme_follows_the_system_until_it_is_chosen(chromium: Browser, page: Path) -> None:
    paper = "getComputedStyle(document.body).backgroundColor"
    chromium.shape(1280, scheme="dark")
    chromium.open(page)
    dark = chromium.evaluate(paper)
    click(chromium, "#theme")
    light = chromium.evaluate(paper)
    assert dark != light
    chromium.shape(1280, scheme="light")
    assert chromium.evaluate(paper) == light
    click(chromium, "#theme")
    assert chromium.evaluate(paper) == dark
    assert chromium.evaluate("document.getElementById('theme').textContent") == "Light"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_stand_out(chromium: Browser, page: Path, scheme: str) -> None:
    """WCAG 2.1: text 4.5, what carries meaning 3 against the page; idle time is what is left of a bar."""
    chromium.shape(1280, scheme=scheme)
    chromium.open(page)
    ratio = """(names => names.map(name => {
        const line = x => x <= .04045 ? x / 12.92 : ((x + .055) / 1.055) ** 2.4;
        const of = colour => {
            const [r, g, b] = colour.match(/[\\d.]+/g).map(x => line(x / 255));
            return .2126 * r + .7152 * g + .0722 * b + .05;
        };
        const probe = document.createElement('i');
        document.body.append(probe);
        probe.style.color = `var(--${name})`;
        const [a, b] = [of(getComputedStyle(probe).color), of(getComputedStyle(document.body).backgroundColor)];
        return Math.max(a, b) / Math.min(a, b);
    }))"""
    text = chromium.evaluate(f"{ratio}(['ink', 'soft', 'warn', 'accent'])")
    marks = ["forward", "backward", "optimizer", "codec", "data", "messages", "other"]
    drawn = chromium.evaluate(f"{ratio}({[*(f'k-{name}' for name in marks), *(f'p{i}' for i in range(10)), 'firm']!r})")
    assert min(text) >= 4.5
    assert min(drawn) >= 3


def test_everything_that_acts_has_a_name(chromium: Browser, page: Path) -> None:
    chromium.shape(400)
    chromium.open(page)
    bare = chromium.evaluate("""[...document.querySelectorAll('button, select, a, canvas, [tabindex], svg[role=img]')]
        .filter(each => !each.getAttribute('aria-label') && !each.textContent.trim() && !each.labels?.length)
        .map(each => each.outerHTML.slice(0, 80))""")
    assert bare == []


def test_many_instructions_still_draw(chromium: Browser, tmp_path: Path) -> None:
    large = nine(rounds=4, instructions=200)
    write_page(replace(large, rows=large.rows[:3]), tmp_path / "large.html")
    chromium.shape(1280)
    chromium.open(tmp_path / "large.html")
    assert chromium.complaints() == []
    assert "left out" in chromium.evaluate("document.getElementById('left-out').textContent")
