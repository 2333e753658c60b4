"""What is made small, what may be compared, and what is said of it."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

import pytest

from partita.cluster.cluster import Cluster
from partita.cost.datasheet import datasheet_costs
from partita.errors import OptionError, PlanError
from partita.graph.graph import Graph
from partita.report.answers import search_answer
from partita.report.json import search_body
from partita.report.setting import Setting
from partita.searches.auto import auto
from partita.searches.candidate import fits, recipe_of
from partita.searches.exhaustive import exhaustive, grid
from partita.searches.explaining import break_even, widened
from partita.searches.finals import FINALISTS, OF_ONE_RECIPE, finalists, judged, plainest
from partita.searches.objective import OBJECTIVES, objective_value, objective_values
from partita.searches.search import Search
from partita.searches.shortlist import shortlist_of
from tests.priced import priced, signatures, whole_cores
from tests.small import two_layers

EACH = ("single", "ddp", "ddp(microbatches=2)", "ps_sync", "zero2", "backup_workers", "pipe_sgd", "local_sgd(period=2)")


@cache
def found(cluster: Cluster, objective: str = "time", allow: str = "exact", calls: tuple[str, ...] = EACH) -> Search:
    graph = two_layers()
    costs = priced(graph, cluster, batches(graph), operator=1e-3)
    return exhaustive(graph, cluster, costs, objective=objective, allow=allow, calls=calls)


def batches(graph: Graph) -> list[int]:
    """Whatever a worker's part of a minibatch may be."""
    return list(range(1, graph.minibatch + 1))


def with_prices(cluster: Cluster, price: float) -> Cluster:
    device = replace(cluster.devices[0], price=price)
    return replace(cluster, root=replace(cluster.root, members=(device,) * cluster.size))


def test_money_counts_the_devices_that_a_plan_occupies() -> None:
    """Four devices take as long as one here, so that one is four times as cheap; memory is least where a plan keeps
    least."""
    search = found(with_prices(whole_cores(4, 1e9), 3.6), "cost")
    best = search.candidates[0]
    assert recipe_of(best.plan.name) == "single"
    other = next(c for c in search.candidates if recipe_of(c.plan.name) == "ddp")
    ratio = other.timeline.step_seconds * 4 / best.timeline.step_seconds
    assert f"it would cost {ratio:.2f} times as much" in other.explanation
    least = found(whole_cores(4, 1e9), "memory").candidates
    assert [max(c.timeline.memory) for c in least] == sorted(max(c.timeline.memory) for c in least)


def test_by_formula_money_is_that_of_the_first_devices_too() -> None:
    cluster = whole_cores(4, 1e9)
    devices = tuple(replace(d, price=price) for d, price in zip(cluster.devices, (1.0, 1.0, 10.0, 10.0), strict=True))
    cluster = replace(cluster, root=replace(cluster.root, members=devices))
    estimates = shortlist_of(two_layers(), cluster).estimates
    hourly = [(0.0, 1.0, 2.0, 12.0, 22.0)[int(many)] for many in estimates.devices]
    assert {1.0, 22.0} <= set(hourly)
    assert objective_values(estimates, cluster, "cost") == pytest.approx(estimates.seconds * hourly / 3600)


def test_what_memory_makes_small_is_the_least_device_that_a_plan_fits_on() -> None:
    cluster = whole_cores(4, 1e9)
    candidates = found(cluster, "memory").candidates
    assert any(min(c.timeline.memory) < max(c.timeline.memory) for c in candidates)
    for one in candidates:
        bytes_of = round(objective_value(one, cluster, "memory"))
        room = [cluster.changed(lambda device, m=m: replace(device, memory=m)) for m in (bytes_of, bytes_of - 1)]
        assert [fits(one.timeline, devices) for devices in room] == [True, False]


def test_money_needs_prices_and_objectives_are_known() -> None:
    with pytest.raises(OptionError, match=r"does not say it of cpu; add price = 2\.5 \(dollars an hour\)"):
        found(whole_cores(2, 1e9), "cost")
    with pytest.raises(OptionError, match="allowed are time, memory, cost, time-to-loss"):
        found(whole_cores(2, 1e9), "beauty")
    with pytest.raises(OptionError, match="allowed are exact, lossy, delayed, any"):
        found(whole_cores(2, 1e9), allow="most")


@pytest.mark.parametrize(
    ("allow", "classes"),
    [("exact", {"exact"}), ("lossy", {"exact", "lossy"}), ("delayed", {"exact", "delayed"}),
     ("any", {"exact", "lossy", "delayed", "consensus"})],
)  # fmt: skip
def test_classes_that_are_not_allowed_are_left_out_with_a_reason(allow: str, classes: set[str]) -> None:
    search = found(whole_cores(4, 1e9), allow=allow)
    assert {c.semantics for c in search.candidates} == classes
    assert any("its class is" in why for _, why in search.refused) is (allow != "any")


def test_only_exact_plans_are_compared_to_a_loss() -> None:
    search, fast = found(whole_cores(4, 1e9), "time-to-loss", "any"), found(whole_cores(4, 1e9))
    assert [c.plan.name for c in search.candidates] == [c.plan.name for c in fast.candidates]
    late = [why for text, why in search.refused if text.startswith("pipe_sgd")]
    assert late
    assert all("how many more steps than an exact plan it needs to a loss is not known" in why for why in late)


def test_a_ranking_says_what_binds_and_what_others_lose() -> None:
    search = found(whole_cores(4, 1e3))
    best, *others = search.candidates
    assert search.explanation.startswith(f"{best.plan.name} is bound by ")
    assert all(f" times as long as {best.plan.name}" in c.explanation for c in others)
    assert best.gap == search.gap
    assert all(c.gap == c.timeline.step_seconds / search.lower_bound_seconds - 1 for c in search.candidates)


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("speed", [0.5, 4.0])
def test_a_gap_is_of_what_is_made_small(objective: str, speed: float) -> None:
    """However fast devices are; and the answer names its unit."""
    cluster = with_prices(whole_cores(4, 1e9), 3.6)
    device = replace(cluster.devices[0], speed=speed)
    cluster = replace(cluster, root=replace(cluster.root, members=(device,) * 4))
    search = found(cluster, objective)
    values = [objective_value(c, cluster, objective) for c in search.candidates]
    assert [c.gap for c in search.candidates] == [value / search.lower_bound - 1 for value in values]
    assert min(c.gap for c in search.candidates) >= 0
    body = search_body(search, Setting())
    assert (body["objective"], body["lower_bound"], body["gap"]) == (objective, search.lower_bound, search.gap)
    assert body["lower_bound_seconds"] <= min(c.timeline.step_seconds for c in search.candidates)
    said = "\n".join(map(str, search_answer(search, two_layers(), cluster).text))
    verb, unit = {"memory": ("keeps", "B"), "cost": ("costs", "dollars")}.get(objective, ("takes", "[mu]s"))
    assert re.search(rf"timed {verb} less than (\S+ {unit}, and the best predicted {verb} .*more|the best)", said), said


def test_the_bandwidth_at_which_the_order_turns() -> None:
    """A plan of 1 s against one of 4 s / bandwidth factor: equal at factor 4; and one that never wins."""
    turn = break_even(lambda f: 1.0, lambda f: 4.0 / f, 100.0)
    assert turn is not None
    assert turn[0] == pytest.approx(400.0, rel=0.05)
    assert turn[1]
    below = break_even(lambda f: 2.0 / f, lambda f: 4.0, 100.0)
    assert below is not None
    assert below[0] == pytest.approx(50.0, rel=0.05)
    assert not below[1]
    assert break_even(lambda f: 1.0 / f, lambda f: 2.0 / f, 100.0) is None
    between = break_even(lambda f: 1.0, lambda f: 0.5 + abs(f - 4.0) / 4, 100.0)  # it wins from 2 to 6 alone
    assert between is not None
    assert between[0] == pytest.approx(200.0, rel=0.05)
    nearer = break_even(lambda f: 1.0, lambda f: 2.0 if 0.5 < f < 12.0 else 0.5, 100.0)  # on both sides
    assert nearer is not None
    assert nearer[0] == pytest.approx(50.0, rel=0.05)


def test_a_narrow_network_says_where_the_order_turns() -> None:
    """An operator takes 1 ms a sample, the one that reads weights alone 8 ms: 80 ms on one device, 26 on each of four
    and 216 bytes to be sent. At 2 kB/s one device wins, from 4 kB/s on four."""
    cluster, graph = whole_cores(4, 2e3), two_layers()
    sizes = batches(graph)
    by_samples = {name: size * 1e-3 for size in sizes for name in signatures(graph, size)}
    search = exhaustive(graph, cluster, replace(priced(graph, cluster, sizes), operators=by_samples), calls=EACH)
    assert recipe_of(search.candidates[0].plan.name) == "single"
    said = re.search(r"would take [0-9.]+ times as long and wins above ([0-9.]+) kbit/s", search.explanation)
    assert said, search.explanation
    assert float(said[1]) == pytest.approx(8 * 216 / 54, rel=0.05)
    assert widened(cluster, 2.0).narrowest == 2 * cluster.narrowest


def test_finalists_are_few_and_not_all_of_one_recipe() -> None:
    search = found(whole_cores(4, 1e9), allow="any", calls=(*EACH, *grid(("ps_sync",))))
    few = finalists(search)
    names = [recipe_of(c.plan.name) for c in few]
    assert len(few) == FINALISTS
    assert max(names.count(name) for name in names) == OF_ONE_RECIPE
    assert few[0] == search.candidates[0]


def test_the_usual_plan_is_a_finalist() -> None:
    """Whatever data sheets say of it: `auto` is to be better than what everybody would take. Once, if it is best."""
    search = found(whole_cores(4, 1e9), allow="any", calls=(*EACH, *grid(("ps_sync",))))
    for name in (search.candidates[0].plan.name, search.candidates[-1].plan.name):
        few = [c.plan.name for c in finalists(search, usual=name)]
        assert few.count(name) == 1
        assert len(few) == FINALISTS
    assert search.candidates[-1] not in finalists(search)
    assert finalists(search, usual="absent") == finalists(search)


def test_measured_costs_judge_the_finalists_anew() -> None:
    graph, cluster = two_layers(), whole_cores(4, 1e9)
    sheet = datasheet_costs(graph, cluster, tuple(batches(graph)), because="a reason")
    screened = exhaustive(graph, cluster, sheet, calls=EACH)
    few = finalists(screened)
    assert (screened.costs, screened.because) == ("datasheet", "a reason")
    assert judged(screened, few, sheet, objective="time", allow="exact", tell=print) == screened
    measured = priced(graph, cluster, batches(graph), operator=0.5)
    final = judged(screened, few, measured, objective="time", allow="exact", tell=lambda sentence: None)
    assert final.costs == "measured"
    assert {c.plan.name for c in final.candidates} == {c.plan.name for c in few}
    assert all(c.timeline.step_seconds > 1.0 for c in final.candidates)
    assert final.refused == screened.refused


def test_a_class_that_is_not_allowed_is_refused() -> None:
    search = found(whole_cores(2, 1e9), calls=(*EACH, "easgd"))
    barred = [text for text, why in search.refused if "its class is" in why]
    assert barred == ["backup_workers", "pipe_sgd", "local_sgd(period=2)", "easgd"]
    assert {c.semantics for c in search.candidates} == {"exact"}


def test_nothing_that_applies_is_said() -> None:
    graph, cluster = two_layers(), whole_cores(1, 1e9)
    costs = priced(graph, cluster, [8])
    with pytest.raises(PlanError, match="no plan of the grid applies"):
        exhaustive(graph, cluster, costs, calls=["ps_sync"])


@pytest.mark.parametrize("objective", ["memory", "time"])
def test_of_plans_that_are_alike_on_one_device_single_is_named(objective: str) -> None:
    """Servers of nobody, sums with nobody and periods alone are one program, with microbatches as without."""
    alone = whole_cores(1, 1e9)
    for knobs in ("", "microbatches=2"):
        calls = [f"{name}({knobs})" if knobs else name for name in ("ddp", "ps_sync", "local_sgd", "single")]
        calls[1] = f"ps_sync({','.join(filter(None, ('own=False', knobs)))})"
        search = plainest(found(alone, objective, "any", tuple(calls)), alone, objective)
        assert search.best.name == calls[-1]


def test_the_least_memory_of_one_device_is_that_of_single() -> None:
    graph, alone = two_layers(), whole_cores(1, 1e9)
    best = auto(
        shortlist_of(graph, alone, objective="memory"),
        datasheet_costs(graph, alone, tuple(batches(graph))),
        objective="memory",
    )
    assert recipe_of(plainest(best, alone, "memory").candidates[0].plan.name) == "single"


def test_of_a_plan_that_does_not_fit_no_bandwidth_is_said() -> None:
    """Nor of plans of one device, which send nothing."""
    four = whole_cores(4, 1e9)
    small = tuple(replace(device, memory=1) for device in four.devices[1:])
    tight = replace(four, root=replace(four.root, members=(four.devices[0], *small)))
    search = found(tight, calls=("single", "ddp"))
    assert search.best.name == "single"
    assert search.explanation.endswith(" times as long, and does not fit")
    for objective in ("time", "memory"):
        assert "bandwidth" not in found(whole_cores(1, 1e9), objective, calls=("single", "ddp")).explanation
