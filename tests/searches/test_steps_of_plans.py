"""Steps to a loss by plan: counted in curves, kept in a file, and what they decide (MX-03)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from partita import api
from partita.cluster.cluster import Cluster
from partita.errors import OptionError
from partita.graph.graph import Graph
from partita.report.answers import search_answer
from partita.report.json import search_body
from partita.report.setting import Setting
from partita.searches.search import Search
from partita.searches.steps_file import check_steps, read_steps, write_steps
from partita.searches.steps_of_plans import WINDOW, MeasuredPlan, StepsOfPlans, reached
from tests.priced import whole_cores
from tests.small import layers

LOCAL = "local_sgd(period=4)"
DEVICES = 2


def known(**steps: float) -> StepsOfPlans:
    """200 steps of an exact plan; others as given."""
    named = {"ddp": 200.0, **{LOCAL if name == "local" else name: needed for name, needed in steps.items()}}
    return StepsOfPlans(0.5, tuple(MeasuredPlan(*one) for one in named.items()), devices=DEVICES, within=300)


def slow() -> Cluster:
    """Links on which sending gradients takes longer than computing them."""
    return whole_cores(DEVICES, 1e6)


def ranked(steps: StepsOfPlans | None, allow: str = "any", graph: Graph | None = None) -> Search:
    order: dict[str, object] = {"source": "datasheet", "objective": "time-to-loss", "allow": allow}
    return api.search(graph or layers(2), slow(), steps_to_loss=steps, **order)  # type: ignore[arg-type]


def test_a_loss_counts_when_its_mean_has_come_down() -> None:
    """Of a loss that falls by 0.01 a step the mean over 20 steps is 0.095 above the last one; a single lucky minibatch
    is no sign; of two runs the mean counts. Steps have numbers from 0 on: after the first there was one."""
    line = [(step - 1, 0.1 * step, 3.0 - 0.01 * step) for step in range(1, 301)]
    assert WINDOW == 20
    assert reached([line], 1.0) == (210, pytest.approx(21.0))  # 191 ... 210 are 200.5 on average, and 3 - 2.005 < 1
    lucky = [(step, at, 0.0 if step == 49 else loss) for step, at, loss in line]
    assert (reached([lucky], 1.0) or (0,))[0] > 200
    later = [(step, at + 2, loss + 0.2) for step, at, loss in line]
    assert reached([line, later], 1.0) == (220, pytest.approx(23.0))
    assert reached([line], -1.0) is None
    assert reached([line[:30]], 2.9) == (11, pytest.approx(1.1))  # a tenth of a short run: 3 steps
    assert reached([], 1.0) is None
    assert reached([line[:1]], 3.0) == (1, pytest.approx(0.1))


def test_a_file_says_what_was_written(tmp_path: Path) -> None:
    steps, place = replace(known(local=260), never=("pipe_sgd",), task="layers", batch=8), tmp_path / "steps.toml"
    place.write_text(write_steps(steps))
    assert read_steps(place) == steps == check_steps(place, "time-to-loss")
    with pytest.raises(OptionError, match="the steps of ddp to the loss stand there twice"):
        StepsOfPlans(0.5, (MeasuredPlan("ddp", 3.0),), never=("ddp",))
    with pytest.raises(OptionError, match="ddp takes 0 steps to the loss; give a number above 0"):
        StepsOfPlans(0.5, (MeasuredPlan("ddp", 0.0),))


def test_seconds_to_a_loss_are_steps_times_a_step() -> None:
    """A plan that is not exact is first as long as it takes fewer seconds in all: its step's time is a prediction, its
    steps are given."""
    alone = ranked(None, "exact")
    exact = alone.candidates[0].timeline.step_seconds
    local = api.simulate(layers(2), LOCAL, slow()).step_seconds
    turn = 200 * exact / local  # steps with which both take equally long
    few, many = ranked(known(local=0.9 * turn)), ranked(known(local=1.1 * turn))
    assert few.best.name == LOCAL
    assert many.best.name == alone.best.name
    first = few.candidates[0]
    assert first.needs == pytest.approx(0.9 * turn / 200)
    assert few.steps_to_loss == 200
    assert few.candidates[1].explanation.endswith(f"1.11 times as long to the same loss as {LOCAL}")
    assert f"to a loss of 0.5 {LOCAL} takes {0.9 * turn:.0f} steps of" in few.explanation
    assert few.gap == 0
    assert min(c.gap for c in many.candidates) >= 0
    seconds = [c.needs * c.timeline.step_seconds for c in few.candidates if c.fits]
    assert seconds == sorted(seconds)
    body = search_body(few, Setting())["candidates"][0]
    assert body["steps_to_loss"] == pytest.approx(0.9 * turn)
    assert [column.header for column in search_answer(few, layers(2), slow()).text[0].columns][3:5] == [
        "steps", "to the loss",
    ]  # fmt: skip


def test_what_is_not_known_is_not_ranked() -> None:
    """Classes that are not allowed, losses that were not reached, phases, and other numbers of devices."""
    phases = "post_local_sgd(period=4,switch=10)"
    steps = replace(known(local=210, **{phases: 150.0}), never=("pipe_sgd",))
    found = ranked(steps)
    assert LOCAL in {c.plan.name for c in found.candidates}
    why = dict(found.refused)
    assert why["pipe_sgd"] == "its loss was above 0.5 after 300 steps"
    assert "phases" in why[phases]
    bounded = ranked(known(local=210), "exact")
    assert {c.semantics for c in bounded.candidates} == {"exact"}
    assert dict(bounded.refused)[LOCAL] == "its class is consensus and --allow is exact"
    other = ranked(replace(known(local=210), devices=8))
    assert dict(other.refused)[LOCAL] == "its steps to the loss are known on 8 devices, and there are 2"
    unknown = ranked(replace(known(local=210), plans=(*known().plans, MeasuredPlan("dpd", 3.0))))
    assert "did you mean" in dict(unknown.refused)["dpd"]
    nobody = ranked(None)
    assert any("give what was measured (--steps-to-loss)" in why for _, why in nobody.refused)


def test_steps_of_another_training_are_refused() -> None:
    with pytest.raises(OptionError, match="holds the steps of the task other, and it is layers-2 here"):
        ranked(replace(known(), task="other"))
    with pytest.raises(OptionError, match="holds the steps of the minibatch 3, and it is"):
        ranked(replace(known(), batch=3))
    with pytest.raises(OptionError, match="of no exact plan how many steps"):
        ranked(StepsOfPlans(0.5, (MeasuredPlan("ddp(rate_scale=2)", 100.0),)))
