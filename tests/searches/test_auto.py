"""The formula against the event clock, and the search over the grid against looking at all of it."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from partita.api import search
from partita.cluster.cluster import Cluster
from partita.cost.datasheet import datasheet_costs
from partita.graph.graph import Graph
from partita.lowering.lower import lower
from partita.lowering.samples import sizes_of
from partita.plan.plan import Plan
from partita.plan.schedule import Order
from partita.recipes.catalogue import RECIPES, call, parse
from partita.searches import best_first
from partita.searches.auto import auto
from partita.searches.candidate import plainness
from partita.searches.codings import codable, coded_fitting, coded_points
from partita.searches.estimates import Estimates, estimates_of
from partita.searches.lower_bounds import LowerBounds
from partita.searches.shortlist import other_recipes, shortlist_of
from partita.searches.space import SCHEDULES, SHAPE, Space, least_bucket, space_of, usual
from partita.searches.stage_cuts import cuts_of, even_cuts
from partita.simulator.simulate import simulate
from partita.wire.codec import SPECS
from tests.captures import capture
from tests.priced import batches_of
from tests.programs import program_by
from tests.runtime.branching import branching
from tests.searches.accelerators import deep, machines


def grid_of(graph: Graph, cluster: Cluster) -> tuple[Space, Estimates]:
    costs = datasheet_costs(graph, cluster, (1, 8, graph.global_batch))
    cuts = cuts_of(graph, cluster, costs, 16)
    space = space_of(graph, cluster, cuts.most, graph.trained_bytes)
    return space, estimates_of(graph, cluster, costs, space, cuts)


def clocked(graph: Graph, cluster: Cluster, text: str) -> tuple[float, int]:
    program = program_by(text, graph, cluster)
    costs = datasheet_costs(graph, cluster, batches_of(program))
    timeline = simulate(program, costs)
    return timeline.step_seconds, max(timeline.memory)


SLOWLY = [pytest.param(1e4, marks=pytest.mark.slow), 1e5, pytest.param(1e6, marks=pytest.mark.slow), 1e8]
# By how much the formula may be off anywhere, and in the middle; where the wire is nearly all there is, a pipeline is
# cut by what crosses, which the formula does not look at.
FAR = {1e4: (2.0, 1.3), 1e5: (1.6, 1.1), 1e6: (1.6, 1.1), 1e8: (1.6, 1.1)}


@pytest.mark.parametrize("bandwidth", SLOWLY)
def test_the_formula_is_near_the_clock(bandwidth: float) -> None:
    """On drawn points of a small grid, those among them with divided state and many microbatches; no peak is off by
    2."""
    graph, cluster = deep(16), machines(4, bandwidth)
    space, estimates = grid_of(graph, cluster)
    draw = np.random.default_rng(7)
    drawn = draw.choice(len(space), 25, replace=False).tolist()
    many = np.flatnonzero((space.column("shard") > 1) & (space.column("microbatches") > 2))
    drawn += draw.choice(many, 10, replace=False).tolist()
    found = [(estimates.seconds[i], estimates.memory[i], *clocked(graph, cluster, space.call(i))) for i in drawn]
    ratio = np.abs([np.log(formula / clock) for formula, _, clock, _ in found])
    most, middle = FAR[bandwidth]
    assert np.median(ratio) < np.log(middle)
    assert ratio.max() < np.log(most)
    if bandwidth > 1e4:
        assert max(abs(np.log(formula / peak)) for _, formula, _, peak in found) < np.log(2)


def test_what_may_wait_is_not_on_the_way() -> None:
    """Of one microbatch by zero bubble: W of all places but the first is done beside what others compute."""
    graph, cluster = deep(4), machines(4, 1e8)
    space, estimates = grid_of(graph, cluster)
    zero = np.array([order is Order.ZERO_BUBBLE for _, order, _ in SCHEDULES])[space.column("schedule")]
    plain = zero & (space.column("microbatches") == 1) & (space.column("recompute") == 0)
    for i in np.flatnonzero(plain)[::2].tolist():
        assert estimates.seconds[i] == pytest.approx(clocked(graph, cluster, space.call(i))[0], rel=0.1)


@pytest.mark.parametrize(
    ("size", "bandwidth"),
    [(2, 1e6), *(pytest.param(4, width, marks=pytest.mark.slow) for width in (1e4, 1e5, 1e6, 1e8))],
)
def test_the_search_finds_what_looking_at_everything_finds(size: int, bandwidth: float) -> None:
    """The best of the whole grid by the clock is found, and the gap is true: none of it is below the bound."""
    graph, cluster = deep(8), machines(size, bandwidth)
    space, _ = grid_of(graph, cluster)
    shortlist = shortlist_of(graph, cluster)
    steps = [clocked(graph, cluster, space.call(i))[0] for i in range(len(space))]
    sizes = {size for plan in shortlist.plans for size in sizes_of(plan, graph)} | {1, 8}
    found = auto(shortlist, datasheet_costs(graph, cluster, tuple(sorted(sizes))))
    assert found.space == len(space)
    best = found.candidates[0].timeline.step_seconds
    assert best <= min(steps) * (1 + 1e-9)
    assert found.lower_bound_seconds <= min(steps) * (1 + 1e-9)
    assert found.gap == pytest.approx(best / found.lower_bound_seconds - 1)
    assert found.gap == pytest.approx(0.0)


def test_plans_of_batches_that_none_looked_at_had_are_ranked() -> None:
    """What is found beside the shortlist has operators that its costs do not know, and the words of the ranking ask for
    its step at other bandwidths."""
    graph, cluster = deep(8), machines(4, 1e6)
    shortlist = shortlist_of(graph, cluster)
    best = auto(shortlist, datasheet_costs(graph, cluster, (1, 2, 3, 4, 8))).best
    known = set(sizes_of(best, graph))
    slow = next(each for each in shortlist.listed if not known & set(sizes_of(each.plan, graph)))
    found = auto(replace(shortlist, listed=(slow,)), datasheet_costs(graph, cluster, tuple(sizes_of(slow.plan, graph))))
    assert found.best.name == best.name


def test_of_equal_steps_the_plainest_plan_is_first() -> None:
    """Where nothing is worth computing again, `recompute=full` is the same step with a setting."""
    graph, cluster = deep(8), machines(1, 1e6)
    found = auto(shortlist_of(graph, cluster), datasheet_costs(graph, cluster, (1, 2, 4, 8)))
    first, *others = found.candidates
    alike = [one for one in others if one.timeline.step_seconds == first.timeline.step_seconds]
    assert first.plan.name == "single"
    assert alike
    assert all(plainness(first) <= plainness(one) for one in alike)


def test_the_usual_plan_and_one_device_are_looked_at_on_few_devices() -> None:
    """On many, where clocking a plan takes a while, it is not."""
    graph = deep(8)
    assert usual(graph) == "ddp"
    for size, known in ((4, True), (32, False)):
        names = [plan.name for plan in shortlist_of(graph, machines(size, 1e6)).plans]
        assert (names.count("ddp"), names.count("single")) == (known, known)


@pytest.mark.parametrize("allow", ["exact", "lossy"])
def test_where_nothing_fits_the_gap_is_to_a_bound_that_is_one(allow: str) -> None:
    """It was -100 %, to an infinite bound: no plan that fits takes less than infinitely long, for there is none."""
    graph, cluster = deep(4), machines(2, 1e6)
    tiny = cluster.changed(lambda device: replace(device, memory=64))
    found = search(graph, tiny, source="datasheet", allow=allow)
    assert not any(one.fits for one in found.candidates)
    assert 0 < found.lower_bound_seconds <= min(one.timeline.step_seconds for one in found.candidates)
    assert found.gap >= 0


def test_on_many_devices_the_formula_says_where_the_order_turns() -> None:
    """A break-even takes a dozen simulations; by formula it takes none. What it says of a step here is the clock's."""
    graph, cluster = deep(8), machines(72, 1e6)
    found = auto(shortlist_of(graph, cluster), datasheet_costs(graph, cluster, (1, 2, 4, 8)))
    assert found.explanation.endswith(", by formula")
    assert "would take" in found.explanation
    assert found.lower_bound_seconds <= found.candidates[0].timeline.step_seconds


def test_no_plan_is_clocked_twice_where_the_formula_underrates_all(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, cluster = deep(8), machines(72, 1e6)
    shortlist = shortlist_of(graph, cluster)
    quicker, asked = tuple(replace(each, seconds=0.95 * each.seconds) for each in shortlist.listed), list[str]()

    def counted(text: str, graph: Graph, cluster: Cluster) -> Plan:
        asked.append(text)
        return call(text, graph, cluster)

    monkeypatch.setattr(best_first, "call", counted)
    costs = datasheet_costs(graph, cluster, (1, 2, 4, 8))
    found = auto(replace(shortlist, listed=quicker), costs)
    assert len(asked) == len(set(asked)) > 0
    assert found.best.name == auto(shortlist, costs).best.name


def test_what_is_allowed_joins() -> None:
    """Codecs where plans may be lossy, late recipes where they may be delayed, all others where anything goes."""
    exact, lossy, delayed, every = (set(other_recipes(allow)) for allow in ("exact", "lossy", "delayed", "any"))
    assert {f"ddp(codec={name})" for name in SPECS} == lossy - exact
    assert "ssp" in delayed - exact
    assert every >= lossy | delayed | {"gossip"}
    assert "parallel_sgd" not in every


def test_what_joins_has_no_smaller_buckets_than_the_grid() -> None:
    """A model of 32 GB is not simulated in buckets of 256 KiB; a small one's recipes are left as they are."""
    least = least_bucket(2**35)
    assert least == 2**29
    for text in other_recipes("any", least):
        name, knobs = parse(text)
        assert knobs.get("bucket_bytes", RECIPES[name].knobs.get("bucket_bytes", least)) >= least
    assert other_recipes("any", least_bucket(2**20)) == other_recipes("any")


def test_points_of_the_grid_have_codecs_where_they_may() -> None:
    """Beside codecs on all devices with a recipe's own buckets: each on a point of several replicas that takes it,
    which the clock finds near the best of these for it."""
    graph, cluster = deep(8), machines(4, 1e5)
    space, _ = grid_of(graph, cluster)
    points = {name: {space.call(i) for i in codable(space, name).tolist()} for name in SPECS}
    for allow in ("exact", "lossy", "delayed", "any"):
        shortlist = shortlist_of(graph, cluster, allow=allow)
        found = {plan.name for plan in shortlist.plans if any(sync.wire.codecs for sync in plan.sync)}
        own = {f"ddp(codec={name})" for name in SPECS}
        assert own <= found if allow in ("lossy", "any") else not found
        split = [name.removesuffix(")").rsplit(",codec=", 1) for name in found - own]
        assert all(f"{point})" in points[codec] for point, codec in split)
        assert {codec for _, codec in split} == (set(SPECS) if found else set())
        for point, codec in split[::6] if allow == "lossy" else ():
            best = min(clocked(graph, cluster, f"{one[:-1]},codec={codec})")[0] for one in sorted(points[codec])[::4])
            assert clocked(graph, cluster, f"{point},codec={codec})")[0] <= 1.5 * best
    assert not any(plan.sync[0].wire.codecs for plan in shortlist_of(graph, cluster, allow="lossy", tight=True).plans)


def test_no_point_with_a_codec_is_below_its_floor() -> None:
    """Nor is what `auto` says no plan takes less than, where plans may be lossy: these points count."""
    graph, cluster = deep(8), machines(4, 1e5)
    space, _ = grid_of(graph, cluster)
    bounds, lowest = LowerBounds(graph, cluster), float("inf")
    for codec in ("fp16", "dgc", "powersgd"):
        some = codable(space, codec)
        least = bounds.steps.computing(space.some(some))
        lowest = min(lowest, float(least.min()))
        for k in range(0, len(some), max(len(some) // 12, 1)):
            call_ = f"{space.call(int(some[k]))[:-1]},codec={codec})"
            assert least[k] <= clocked(graph, cluster, call_)[0]
    costs = datasheet_costs(graph, cluster, tuple(range(1, 9)))
    found = auto(shortlist_of(graph, cluster, allow="lossy"), costs, allow="lossy")
    assert found.lower_bound_seconds <= lowest
    assert found.space == len(space) + coded_points(space)
    assert found.fitting == found.space  # of points that are counted none is taken not to fit for its codec
    assert found.gap >= 0


def test_points_with_codecs_are_counted_as_fitting_by_what_codecs_hold() -> None:
    """A tiny model on cards of 80 GiB was said to fit by one point of twelve: the others were never looked at."""
    graph, cluster = deep(8), machines(4, 1e5)
    estimates = shortlist_of(graph, cluster, allow="lossy").estimates
    most, none = np.full(len(estimates.space), np.inf), np.zeros(len(estimates.space))
    assert coded_fitting(estimates, graph, most) == coded_points(estimates.space) > 0
    assert coded_fitting(estimates, graph, none) == 0
    assert 0 < coded_fitting(estimates, graph, estimates.memory) < coded_points(estimates.space)  # some hold nothing


@pytest.mark.parametrize("size", [32, 72])
def test_codecs_are_tried_on_many_devices(size: int) -> None:
    """A few, by formula, also where there are more devices than samples."""
    graph, cluster = deep(8), machines(size, 1e5)
    found = search(graph, cluster, source="datasheet", allow="lossy")
    assert any("codec=" in one.plan.name for one in found.candidates)
    assert found.gap >= 0


def test_a_codec_on_a_point_may_be_the_best() -> None:
    """On a narrow network the quickest plan that may be lossy has one, and is quicker than the quickest exact one."""
    graph, cluster = deep(16), machines(4, 1e5)
    shortlist = shortlist_of(graph, cluster, allow="lossy")
    costs = datasheet_costs(graph, cluster, tuple(range(1, 17)))
    found = {c.plan.name: c.timeline.step_seconds for c in auto(shortlist, costs, allow="lossy").candidates}
    exact = auto(shortlist_of(graph, cluster), costs).candidates[0].timeline.step_seconds
    assert "codec=" in min(found, key=found.__getitem__)
    assert min(found.values()) < exact


def test_the_grid_is_whole_and_lowers() -> None:
    """Every degree that divides the minibatch and fits the devices, every schedule; a point's call is what it says."""
    graph, cluster = deep(8), machines(4, 1e6)
    space, _ = grid_of(graph, cluster)
    degrees = {(int(row[0]), int(row[1])) for row in space.shapes}
    assert degrees == {(1, 1), (2, 1), (4, 1), (1, 2), (1, 3), (1, 4), (2, 2)}
    assert len({*zip(map(tuple, space.shapes.tolist()), space.buckets.tolist(), strict=True)}) == len(space)
    orders = {SCHEDULES[int(row[SHAPE.index("schedule")])][1] for row in space.shapes}
    assert orders == set(Order) - {Order.BIDIRECTIONAL, Order.MESSAGE}
    for i in range(0, len(space), 17):
        plan = call(space.call(i), graph, cluster)
        assert plan.mesh.length("data") == space.column("data")[i]
        assert max(plan.mesh.length("pipe"), 1) == space.column("pipe")[i]
        assert plan.schedule.microbatches == space.column("microbatches")[i]
        lower(graph, plan, cluster)


def test_nothing_is_recomputed_of_a_model_that_is_one_operator() -> None:
    graph = capture(branching())
    space = space_of(graph, machines(4, 1e6), 1, graph.trained_bytes)
    assert {*space.column("recompute").tolist()} == {0}
    assert {*space.column("data").tolist()} >= {1, 2, 4}


def test_divisions_are_the_best_there_are() -> None:
    draw = np.random.default_rng(3)
    for _ in range(20):
        seconds = draw.integers(1, 20, size=7).astype(float)
        for parts, starts in enumerate(even_cuts(seconds, 5), start=1):
            worst = max(part.sum() for part in np.split(seconds, starts[1:]))
            every = (np.split(seconds, list(cut)) for cut in combinations(range(1, 7), parts - 1))
            assert worst == min(max(part.sum() for part in each) for each in every)


@pytest.mark.parametrize(("size", "batch"), [(3, 64), (24, 256), (40, 512)])
def test_all_devices_are_tried_also_where_the_minibatch_does_not_divide(size: int, batch: int) -> None:
    graph, cluster = deep(batch), machines(size, 1e6, 10**7)
    space, estimates = grid_of(graph, cluster)
    whole = np.flatnonzero(space.column("data") == size)
    assert {*space.column("shard")[whole].tolist()} == {0, 1, 2, 3}
    bounds = LowerBounds(graph, cluster).steps.seconds(space)
    for i in whole[:: len(whole) // 4]:
        seconds, memory = clocked(graph, cluster, space.call(int(i)))
        assert bounds[i] <= seconds * (1 + 1e-9)
        assert estimates.seconds[i] == pytest.approx(seconds, rel=0.5)
        assert estimates.memory[i] == pytest.approx(memory, rel=0.5)
