"""Steps to a loss by minibatch: the law through them, the file, and what they decide."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from itertools import product
from math import inf, sqrt
from pathlib import Path

import numpy as np
import pytest

from partita import api
from partita.__main__ import main
from partita.cluster.cluster import Cluster
from partita.errors import InputError, OptionError, PlanError
from partita.graph.graph import Graph
from partita.graph.text import write_graph
from partita.report.answers import search_answer
from partita.searches.exhaustive import exhaustive
from partita.searches.minibatches import over_minibatches
from partita.searches.search import Search
from partita.searches.steps_file import check_steps, read_steps, write_steps
from partita.searches.steps_to_loss import MeasuredMinibatch, StepsToLoss, fitted, slope
from tests.priced import priced, signatures, whole_cores
from tests.small import layers, two_layers

BATCHES = tuple(2**k for k in range(7))
CRITICAL = 8.0


def lawful(floor: float = 40.0, critical: float = CRITICAL, losses: dict[int, float] | None = None) -> StepsToLoss:
    """Points of the law itself, each with a rate, and with losses where given."""
    points = tuple(
        MeasuredMinibatch(b, floor * (1 + critical / b), b / 100, (losses or {}).get(b, 0.0)) for b in BATCHES
    )
    return StepsToLoss(0.5, points, "two-layers", 6400 if losses else 0)


def test_the_law_is_found_in_its_own_points() -> None:
    """LB-06: K(B) = floor (1 + critical / B), steps halved by doubling where B is small, left where it is large."""
    law = lawful().law
    assert (law.floor, law.critical, law.r2) == pytest.approx((40, CRITICAL, 1), rel=1e-9)
    assert law.steps(8) == pytest.approx(80)
    wide = [MeasuredMinibatch(b, 40 + 40 * 512 / b) for b in (1, 2, 16384, 32768)]
    assert slope(*wide[:2]) == pytest.approx(-1, abs=0.01)
    assert slope(*wide[2:]) == pytest.approx(0, abs=0.03)


def test_errors_are_relative() -> None:
    """No law of a grid around it has a smaller sum of squared relative errors; that of errors in steps is another's."""
    offs = (1.3, 1, 0.9, 1, 1.1, 1, 0.8)
    points = [replace(p, steps=p.steps * off) for p, off in zip(lawful().points, offs, strict=True)]

    def errors(floor: float, noise: float) -> float:
        return sum(((floor + noise / p.batch) / p.steps - 1) ** 2 for p in points)

    law = fitted(points)
    near = (0.95, 0.99, 1.0, 1.01, 1.05)
    assert min(product(near, near), key=lambda by: errors(law.floor * by[0], law.noise * by[1])) == (1.0, 1.0)
    assert 0.9 < law.r2 < 0.99
    noise, floor = np.polyfit([1 / p.batch for p in points], [p.steps for p in points], 1)
    assert errors(floor, noise) > 1.5 * errors(law.floor, law.noise)


@pytest.mark.parametrize(("exponent", "floor", "critical"), [(-1.5, 0.0, inf), (0.2, None, 0.0)])
def test_no_law_has_less_than_nothing(exponent: float, floor: float | None, critical: float) -> None:
    """Steps that fall faster than 1 / B have no floor, steps that rise have no noise."""
    law = fitted([MeasuredMinibatch(b, 1000 * b**exponent) for b in BATCHES])
    assert law.critical == critical
    assert law.noise >= 0
    assert floor is None or law.floor == floor
    assert all(law.steps(b) > 0 for b in BATCHES)


def test_a_file_says_what_was_written(tmp_path: Path) -> None:
    steps, place = lawful(losses=dict.fromkeys(BATCHES, 0.3)), tmp_path / "steps.toml"
    place.write_text(write_steps(steps))
    assert read_steps(place) == steps == check_steps(place, "time-to-loss")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("points = 3", r"steps.toml.points is 3; a list belongs there"),
        ("", "lacks the key 'points'"),
        ("task = ", "cannot be read"),
        ("[[points]]\nbatch = 1\nstep = 3", "has no key 'step'; did you mean 'steps'"),
        ("[[points]]\nbatch = 1\nsteps = nan", "is nan; a finite number belongs there"),
        ("[[points]]\nbatch = 1\nsteps = 9", r"known for the minibatches \[1\]; give 3 or more"),
        ("[[points]]\nschema = 1", "has no key 'schema'"),
    ],
)
def test_a_file_of_something_else_is_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "steps.toml").write_text("target = 1.0\n" + text)
    with pytest.raises(InputError, match=r"has schema None; this version|cannot be read"):
        read_steps(tmp_path / "steps.toml")
    (tmp_path / "steps.toml").write_text("schema = 1\ntarget = 1.0\n" + text)
    with pytest.raises(InputError, match=said):
        read_steps(tmp_path / "steps.toml")


def test_points_that_make_no_law_are_refused(tmp_path: Path) -> None:
    for batches in ((4, 2, 1), (1, 1, 2), (0, 1, 2)):
        with pytest.raises(OptionError, match="from 1 sample on, each once and the smallest first"):
            StepsToLoss(0.5, tuple(MeasuredMinibatch(b, 3.0) for b in batches))
    with pytest.raises(OptionError, match=r"minibatches of 2 samples take 0\.0 steps to the loss"):
        StepsToLoss(0.5, (MeasuredMinibatch(1, 3.0), MeasuredMinibatch(2, 0.0), MeasuredMinibatch(4, 3.0)))
    with pytest.raises(
        OptionError, match="--objective is time; it weighs minibatches and plans for --objective time-to-loss"
    ):
        check_steps(tmp_path / "steps.toml", "time")
    with pytest.raises(OptionError, match=r"absent.toml cannot be read .*; give a TOML file"):
        check_steps(tmp_path / "absent.toml", "time-to-loss")


OVERHEAD = 2  # samples that an operator takes as long for as it takes to begin


def ranked(graph: Graph, cluster: Cluster) -> Search:
    """`single`, ranked, where an operator takes a millisecond for each sample and OVERHEAD more."""
    sizes = [graph.global_batch]
    by_samples = {name: (OVERHEAD + size) * 1e-3 for size in sizes for name in signatures(graph, size)}
    costs = replace(priced(graph, cluster, sizes), operators=by_samples)
    return exhaustive(graph, cluster, costs, calls=["single"], objective="time-to-loss")


def weighed(known: StepsToLoss, graph: Graph | None = None) -> Search:
    return over_minibatches(graph or two_layers(), known, partial(ranked, cluster=whole_cores(1, 1e9)))


def test_the_soonest_minibatch_is_where_both_laws_say() -> None:
    """(1 + critical / B) x (overhead + B) is least at the root of critical x overhead; a step alone is least at 1
    sample, a sample at the most."""
    search, law = weighed(lawful()), lawful().law
    best, *others = search.minibatches
    assert best.point.batch == sqrt(CRITICAL * OVERHEAD) == 4
    assert search.candidates[0].timeline.batch == 4
    for each in search.minibatches:
        assert each.seconds == pytest.approx(law.steps(each.point.batch) * each.step_seconds, rel=1e-12)
    # Symmetric about the best one where both are powers of two around it: 2 and 8, 1 and 16 take the same.
    by_batch = {each.point.batch: each.seconds for each in search.minibatches}
    assert by_batch[2] / by_batch[8] == pytest.approx(1, rel=1e-6)
    expected = [(1 + CRITICAL / b) * (OVERHEAD + b) for b in BATCHES]
    unit = by_batch[4] / ((1 + CRITICAL / 4) * (OVERHEAD + 4))
    assert [by_batch[b] / unit for b in BATCHES] == pytest.approx(expected, rel=1e-6)
    assert [each.seconds for each in others] == sorted(each.seconds for each in others)
    assert "of 7 minibatches 4 at rate 0.04 is soonest at a loss of 0.5: 120 steps of" in search.explanation


def test_another_law_chooses_another_minibatch() -> None:
    """Where noise settles nothing one sample is soonest, where it settles all the most are."""
    assert weighed(lawful(critical=0.01)).minibatches[0].point.batch == 1
    assert weighed(lawful(critical=1e5)).minibatches[0].point.batch == 64


def test_the_interval_where_both_are_good() -> None:
    """MX-01: samples a second are B / (B + 2) of the most: nine tenths of what 64 have from 16 on; the loss after equal
    samples is within a tenth of the least up to 32."""
    losses = {1: 0.2, 2: 0.2, 4: 0.2, 8: 0.2, 16: 0.205, 32: 0.215, 64: 0.3}
    search = weighed(lawful(losses=losses))
    assert {each.point.batch for each in search.minibatches if each.good} == {16, 32}
    assert "from 16 to 32 a minibatch has 90% of the most samples a second" in search.explanation
    apart = weighed(lawful(losses={b: 0.2 * b for b in BATCHES}))
    assert not any(each.good for each in apart.minibatches)
    assert "none both keeps the devices busy and learns as much" in apart.explanation
    assert not any(each.good for each in weighed(lawful()).minibatches)


def test_minibatches_that_cannot_be_had_are_said() -> None:
    few = weighed(lawful(), replace(two_layers(), samples=16))
    assert {each.point.batch for each in few.minibatches} == {1, 2, 4, 8, 16}
    assert ("minibatches of 32", "two-layers has 16 samples") in few.refused
    with pytest.raises(OptionError, match="holds the steps of two-layers, and the task is others"):
        weighed(lawful(), replace(two_layers(), name="others"))
    with pytest.raises(PlanError, match="no minibatch has a plan: the graph of two-layers was captured for 3 samples"):
        weighed(lawful(), replace(two_layers(), symbolic=False, batch=3, global_batch=3))


def test_the_best_few_are_judged_anew() -> None:
    """By costs that turn the order of those that screening found soonest; the others stay behind them."""
    asked: list[int] = []

    def judge(graph: Graph) -> Search:
        asked.append(graph.global_batch)
        cluster = whole_cores(1, 1e9)
        slow = 1.0 if graph.global_batch == 4 else 1e-3
        return exhaustive(graph, cluster, priced(graph, cluster, [graph.global_batch], operator=slow), calls=["single"])

    screen = partial(ranked, cluster=whole_cores(1, 1e9))
    found = over_minibatches(two_layers(), lawful(), screen, judge)
    assert asked == [4, 2, 8] or asked == [4, 8, 2]
    assert [each.point.batch for each in found.minibatches][:3] == [8, 2, 4]
    assert len(found.minibatches) == 7


def test_the_grid_is_searched_at_every_minibatch() -> None:
    """The least of K(B) x the best plan's step, over minibatches whose grids were searched one by one."""
    graph, cluster = layers(2), whole_cores(2, 1e6)
    known = replace(lawful(), points=lawful().points[2:5], task=graph.name)
    found = api.search(graph, cluster, source="datasheet", objective="time-to-loss", steps_to_loss=known)
    alone = {
        b: api.search(replace(graph, global_batch=b), cluster, source="datasheet", objective="time-to-loss")
        for b in (4, 8, 16)
    }
    took = {b: known.law.steps(b) * one.candidates[0].timeline.step_seconds for b, one in alone.items()}
    assert found.minibatches[0].point.batch == min(took, key=took.__getitem__)
    assert {each.point.batch: each.seconds for each in found.minibatches} == pytest.approx(took, rel=1e-9)
    assert {c.semantics for c in found.candidates} == {"exact"}
    assert len(search_answer(found, graph, cluster).text[1].rows) == 3


def test_the_command_line_weighs_minibatches(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    known, graph = replace(lawful(), points=lawful().points[2:5]), str(tmp_path / "graph.json")
    write_graph(two_layers(), tmp_path / "graph.json")
    (tmp_path / "steps.toml").write_text(write_steps(known))
    words = ["plan", graph, "--cluster", "local:2", "--costs", "datasheet", "--objective", "time-to-loss"]
    words += ["--steps-to-loss", str(tmp_path / "steps.toml")]
    assert main([*words, "--json"]) == 0
    body = json.loads(capfd.readouterr().out)
    assert "of 3 minibatches" in body["explanation"]
    assert {one["batch"] for one in body["minibatches"]} == {4, 8, 16}
    best, law = body["minibatches"][0], known.law
    assert (best["plan"], best["costs"]) == (body["candidates"][0]["plan"], "datasheet")
    assert best["seconds"] == pytest.approx(law.steps(best["batch"]) * body["candidates"][0]["step_seconds"])
    assert best["rate"] == best["batch"] / 100
