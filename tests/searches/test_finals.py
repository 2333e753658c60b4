"""The plainest of the plans that predictions cannot tell from the best one comes first, and the verdict says so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from partita import api
from partita.cluster.cluster import Cluster, Group
from partita.cost.costs import Costs
from partita.cost.datasheet import datasheet_costs
from partita.graph.graph import Graph
from partita.lowering.lower import last_program
from partita.plan.memory import Memory, Recompute
from partita.plan.plan import Plan
from partita.program.timeline import Timeline
from partita.recipes.catalogue import call
from partita.recipes.fastest import ALIKE, candidates
from partita.searches import best_first, exhaustive
from partita.searches.auto import auto
from partita.searches.candidate import Candidate
from partita.searches.finals import FAR, FINALISTS, finalists, finals, judged, plainest, timed_anyway
from partita.searches.fit import ERROR
from partita.searches.search import Search
from partita.searches.shortlist import shortlist_of
from tests.priced import priced, whole_cores
from tests.searches.test_auto import deep, machines
from tests.searches.test_objectives import batches, with_prices
from tests.small import two_layers


def one(
    name: str, seconds: float, *, instructions: float = 10, memory: int = 100, devices: int = 4, fits: bool = True,
    semantics: str = "exact", again: bool = False,
) -> Candidate:  # fmt: skip
    plan = Plan(name, memory=Memory(recompute=Recompute.FULL if again else Recompute.NONE))
    timeline = Timeline(name, "simulated", seconds, 8, memory=(memory,) * devices)
    return Candidate(plan, timeline, semantics, fits, seconds - 1, f"about {name}", instructions)


def search_of(candidates: Sequence[Candidate]) -> Search:
    return Search(tuple(candidates), 0.1, 1.0, candidates[0].gap, f"{candidates[0].plan.name} is best", space=7)


CLUSTER = with_prices(whole_cores(4, 1e9), 3.6)
BEST = one("best", 1.0, instructions=20)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (one("ddp", 1.012), "best is predicted 1.2% faster, less than predictions miss by; ddp is plainer: 10 instr"),
        (one("ddp", 1.0001), "best is predicted alike; ddp is plainer: 10 instructions"),
        (one("ddp", ALIKE), "ddp is plainer: 10 instructions a step, not 20"),
        (one("ddp", ALIKE + 0.001), ""),
        (one("ddp", 1.01, instructions=30), ""),
        (one("ddp", 1.01, fits=False), ""),
        (one("ddp", 1.01, instructions=20, memory=90), "ddp keeps less: 90 B, not 100 B"),
        (one("ddp", 1.01, instructions=20), ""),
        (one("ddp", 1.01, memory=900), "ddp is plainer"),
        (one("ddp", 1.01, again=True), ""),
        (one("ddp", 1.01, semantics="delayed"), ""),
    ],
)
def test_of_plans_that_are_alike_the_plainest_is_first(other: Candidate, words: str) -> None:
    """Its lead is less than predictions miss by: fewer instructions, then less memory, then the faster one. The gap
    is that of the plan that is predicted best, in either case."""
    ranked = search_of((BEST, one("far", 1.03, instructions=25), other))
    found = plainest(ranked, CLUSTER, "time")
    assert found.candidates[0].plan.name == ("ddp" if words else "best")
    assert words in found.explanation
    assert words in found.candidates[0].explanation
    assert (found == ranked) is not bool(words)
    assert sorted(c.plan.name for c in found.candidates) == ["best", "ddp", "far"]
    assert found.candidates[1].plan.name == ("best" if words else "far")
    assert (found.gap, found.lower_bound_seconds, found.space) == (BEST.gap, 1.0, 7)
    assert found.explanation.splitlines()[-1] == "best is best"


def test_what_trains_as_one_process_does_is_plainer_than_what_does_not() -> None:
    """Then what computes nothing twice, whatever the instructions."""
    fast = replace(one("fast", 1.0, instructions=2), semantics="lossy")
    found = plainest(search_of((fast, one("ddp", 1.02))), CLUSTER, "time")
    assert "ddp is exact" in found.explanation
    again = one("again", 1.0, instructions=2, again=True)
    found = plainest(search_of((again, one("ddp", 1.02))), CLUSTER, "time")
    assert "ddp computes nothing twice" in found.explanation


def test_a_recipe_as_it_comes_is_plainer_than_one_with_settings() -> None:
    """They are alike, and it is what one would take without a search."""
    fast = one("ddp(bucket_bytes=8388608)", 1.0, instructions=2)
    found = plainest(search_of((fast, one("ddp", 1.02, instructions=30))), CLUSTER, "time")
    assert found.best.name == "ddp"
    assert "ddp is the recipe as it comes" in found.explanation
    ranked = search_of((fast, one("ddp", ALIKE + 0.01)))
    assert plainest(ranked, CLUSTER, "time") is ranked


def test_of_several_the_plainest_and_not_the_next() -> None:
    few = (BEST, one("a", 1.01, instructions=15), one("b", 1.02, instructions=10), one("c", 1.03, instructions=10))
    found = plainest(search_of((*few, one("d", 1.06, instructions=1))), CLUSTER, "time")
    assert [c.plan.name for c in found.candidates] == ["b", "best", "a", "c", "d"]


def test_nothing_is_taken_where_nothing_fits() -> None:
    ranked = search_of((replace(BEST, fits=False), one("ddp", 1.01, fits=False)))
    assert plainest(ranked, CLUSTER, "time") is ranked


def test_what_is_alike_is_what_the_objective_counts() -> None:
    """Of memory what predictions of memory miss by, whatever the time; of money seconds times what devices cost."""
    small = one("small", 3.0, instructions=20, memory=1000)
    near, far = (one("near", 1.0, memory=round(1000 * (1 + ERROR))), one("far", 1.0, instructions=1, memory=1100))
    found = plainest(search_of((small, near, far)), CLUSTER, "memory")
    assert found.best.name == "near"
    assert "small is predicted to keep 5.0% less, less than predictions miss by; near is plainer" in found.explanation
    cheap = (one("four", 1.0, instructions=20), one("two", 2.02, devices=2), one("one", 4.4, devices=1, instructions=1))
    found = plainest(search_of(cheap), CLUSTER, "cost")
    assert found.best.name == "two"
    assert "four is predicted 1.0% cheaper" in found.explanation
    assert plainest(search_of(cheap), CLUSTER, "time").best.name == "four"
    assert plainest(search_of((BEST, one("ddp", 1.01))), CLUSTER, "time-to-loss").best.name == "ddp"


def test_instructions_are_those_of_a_step_on_all_ranks() -> None:
    graph, cluster = two_layers(), whole_cores(4, 1e9)
    costs = priced(graph, cluster, batches(graph))
    calls = ("single", "ddp", "local_sgd(period=4)", "ps_sync")
    found = exhaustive.exhaustive(graph, cluster, costs, calls=calls, allow="any")
    for c in found.candidates:
        program = last_program(graph, c.plan, cluster)
        each = [len(role.instructions) for role in program.roles for _ in role.ranks]
        assert c.instructions == sum(each) / program.steps == program.length / program.steps
    many = {c.plan.name: c.instructions for c in found.candidates}
    assert many["single"] * 4 < many["ddp"]


def test_measured_costs_judge_and_the_plainest_of_what_is_alike_is_first() -> None:
    """Where a step is nearly all computing, messages of 36 numbers tell no two plans of four workers apart."""
    graph, cluster = two_layers(), whole_cores(4, 1e9)
    calls = ("zero2", "ddp", "ps_sync", "zero3", "single")
    measured = priced(graph, cluster, batches(graph), operator=0.5)
    ranked = exhaustive.exhaustive(graph, cluster, measured, calls=calls)
    found = judged(ranked, ranked.candidates, measured, objective="time", allow="exact", tell=lambda sentence: None)
    most = ALIKE * ranked.candidates[0].timeline.step_seconds
    near = [c for c in ranked.candidates if c.timeline.step_seconds <= most]
    assert len(near) > 2
    assert found.candidates[0].instructions == min(c.instructions for c in near)
    assert found.gap == ranked.gap


@pytest.mark.parametrize("slow", ["computing", "links"])
def test_the_grid_is_screened_at_the_speed_that_was_measured(slow: str) -> None:
    """Data sheets say that computing binds; it takes a millionth of that, or messages take a second each, so that one
    device is the best, which would not be among the best few by them. It and the usual plan are in the finals."""
    graph, cluster = deep(8), machines(4, 1e3 if slow == "computing" else 1e6)
    cluster = replace(cluster, root=as_fast(1e-3, cluster)) if slow == "computing" else cluster
    usual = call("ddp", graph, cluster)

    def screen(measured: Costs | None) -> tuple[Search, Costs]:
        shortlist, costs = known(graph, cluster, measured)
        return plainest(auto(shortlist, costs), cluster, "time"), costs

    def measure(few: Sequence[Plan]) -> Costs:
        sheet = datasheet_costs(graph, cluster, api.batches_of(graph, few))
        if slow == "links":
            return replace(sheet, source="measured", wiring=replace(sheet.wiring, message=1.0), _sums={})
        operators = {name: value / 1e6 for name, value in sheet.operators.items()}
        return replace(sheet, source="measured", operators=operators, _sums={})

    found, costs = finals(usual, screen, measure, objective="time", allow="exact", tell=lambda sentence: None)
    assert costs.source == found.costs == "measured"
    assert found.best.name.startswith("single")
    assert "ddp" in {c.plan.name for c in found.candidates}
    blind = finalists(screen(None)[0], usual="ddp")
    assert "single" not in {c.plan.name for c in blind}


@pytest.mark.parametrize("quickest", ["halving", "backend"])
def test_all_reduces_go_as_they_were_timed_to_be_quickest(quickest: str) -> None:
    """Where all-reduces were timed by every algorithm, beside each plan whose recipe lets it stands the same one by the
    algorithm that was quickest; codecs and divided state are left as they are."""
    graph, cluster = two_layers(), machines(4, 1e4)
    sheet = datasheet_costs(graph, cluster, tuple(batches(graph)))
    seconds = {name: 0.2 if name == quickest else 0.6 for name in candidates(4)}
    wiring = replace(sheet.wiring, schedules=tuple((name, ((1, s), (2**30, s))) for name, s in seconds.items()))
    timed = replace(sheet, source="measured", wiring=wiring, _sums={})
    calls = ("ddp", "ps_sync", "ddp(codec=q8)", "ddp(shard=optimizer)")
    screened = exhaustive.exhaustive(graph, cluster, sheet, calls=calls, allow="lossy")
    order: dict[str, Any] = {"objective": "time", "allow": "lossy", "tell": lambda sentence: None}
    found = judged(screened, screened.candidates, timed, **order)
    plans = {c.plan.name: c.plan for c in found.candidates}
    assert plans.keys() == {*calls, "ddp(collective=auto)"}
    assert plans["ddp(collective=auto)"].sync[0].wire.collective == quickest
    plain = judged(screened, screened.candidates, replace(timed, wiring=sheet.wiring), **order)
    assert {c.plan.name for c in plain.candidates} == {*calls}


def test_what_needs_no_other_timings_is_judged_too() -> None:
    """In their order the other candidates whose batch sizes and codecs are timed for the finalists: neither one device,
    nor three beside a server, which take other parts of a minibatch, nor what is encoded."""
    graph, cluster = two_layers(), whole_cores(4, 1e9)
    costs = priced(graph, cluster, batches(graph))
    calls = ("ddp", "single", "zero2", "ps_sync", "zero3", "ddp(codec=fp16)", "ddp(codec=q8)")
    ranked = exhaustive.exhaustive(graph, cluster, costs, calls=calls, allow="lossy")

    def beside(*finalists: str) -> list[str]:
        few = tuple(c for c in ranked.candidates if c.plan.name in finalists)
        return [c.plan.name for c in timed_anyway(few, ranked, graph)]

    names = [c.plan.name for c in ranked.candidates]
    assert beside("ddp") == [name for name in names if name in ("zero2", "zero3")]
    assert beside("ddp(codec=fp16)") == [name for name in names if name in ("ddp", "zero2", "zero3")]
    assert beside("single") == []


def test_where_nothing_is_measured_the_data_sheets_of_the_cluster_rank() -> None:
    graph, cluster = deep(8), machines(4, 1e6)
    ranked = plainest(auto(*known(graph, cluster)), cluster, "time")
    order: dict[str, Any] = {"objective": "time", "allow": "exact", "tell": lambda sentence: None}
    sheet = datasheet_costs(graph, cluster, (2,), because="a reason")
    found, _ = finals(call("ddp", graph, cluster), lambda measured: (ranked, sheet), lambda few: sheet, **order)
    assert found == replace(ranked, because="a reason")


def as_fast(factor: float, cluster: Cluster) -> Group:
    """The devices with data sheets of so many times their speed."""
    device = cluster.devices[0]
    flops = tuple((dtype, factor * speed) for dtype, speed in device.flops)
    slow = replace(device, flops=flops, memory_bandwidth=factor * device.memory_bandwidth)
    return replace(cluster.root, members=(slow,) * cluster.size)


@pytest.fixture
def clocked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The programs that searches clock."""
    names = list[str]()
    for module, name in ((exhaustive, "simulate"), (best_first, "clocked")):
        plain: Any = getattr(module, name)

        def counted(program: Any, *order: Any, plain: Any = plain, **more: Any) -> Any:
            names.append(program.name)
            return plain(program, *order, **more)

        monkeypatch.setattr(module, name, counted)
    return names


@pytest.mark.parametrize("size", [4, 32])
@pytest.mark.parametrize("bandwidth", [1e5, 1e6, 1e8])
def test_the_choice_is_after_the_search(size: int, bandwidth: float, clocked: list[str]) -> None:
    """The gap is the search's, no program is clocked for the choice, and what is chosen is alike and the plainest."""
    graph, cluster = deep(8), machines(size, bandwidth)
    ranked = auto(*known(graph, cluster))
    once = len(clocked)
    found = api.search(graph, cluster, source="datasheet")
    assert once == len(clocked) - once > 0
    assert found.gap == pytest.approx(ranked.gap)
    assert found.lower_bound_seconds == pytest.approx(ranked.lower_bound_seconds)
    assert found.clocked == ranked.clocked
    most = ALIKE * ranked.candidates[0].timeline.step_seconds
    near = [c for c in ranked.candidates if c.fits and c.timeline.step_seconds <= most]
    first = found.candidates[0]
    assert first.plan.name in {c.plan.name for c in near}
    once_only = [c for c in near if c.plan.memory.recompute is Recompute.NONE] or near
    assert first.instructions == min(c.instructions for c in once_only)
    assert api.plan_of("auto", graph, cluster).name == first.plan.name


def known(graph: Graph, cluster: Cluster, measured: Costs | None = None) -> tuple[Any, Any]:
    """The shortlist of a search, and the data sheets that rank it."""
    shortlist = shortlist_of(graph, cluster, measured=measured)
    return shortlist, datasheet_costs(graph, cluster, api.batches_of(graph, shortlist.plans), measured=measured)


@pytest.mark.parametrize(("seconds", "usual", "last"), [
    (FAR - 0.1, "", ["single"]), (FAR + 0.1, "", []),
    (FAR - 0.1, "ddp", ["single", "ddp"]), (FAR + 0.1, "ddp", ["ddp"]),
])  # fmt: skip
def test_one_device_is_a_finalist_unless_it_is_far_behind(seconds: float, usual: str, last: list[str]) -> None:
    """Of an LSTM on 100 Mbit/s it was never timed, and so never taken, though by measured costs it is within what
    predictions miss by, and the plainer."""
    better = [one(f"recipe{n}", 1.0 + 0.01 * n) for n in range(FINALISTS)]
    few = finalists(search_of([*better, one("single", seconds, devices=1), one("ddp", 3.0)]), usual=usual)
    assert [c.plan.name for c in few] == [c.plan.name for c in better[: FINALISTS - len(last)]] + last
