"""Candidates in order and in words, by hand: who is first, what a gap is of, whom the best one is held against."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import pytest

from partita.cluster.cluster import Cluster
from partita.searches.candidate import Candidate, fits
from partita.searches.ranking import At, ranked
from partita.searches.search import Search
from tests.priced import priced, whole_cores
from tests.searches.test_finals import one
from tests.searches.test_objectives import with_prices
from tests.small import two_layers

GRAPH = two_layers()
CLUSTER = with_prices(whole_cores(4, 1e9), 3.6)


def constant(seconds: float) -> Callable[[float], float]:
    return lambda factor: seconds


def as_long(candidate: Candidate) -> Callable[[float], float]:
    """What a step takes on any links."""
    return constant(candidate.timeline.step_seconds)


def search(
    found: Sequence[Candidate], objective: str = "time", cluster: Cluster = CLUSTER, bound: float = 0.0,
    at: At = as_long, sizes: Sequence[int] = (1, 8),
) -> Search:  # fmt: skip
    return ranked(GRAPH, priced(GRAPH, cluster, sizes, operator=1e-3), found, (), objective, bound, at)


def sent(candidate: Candidate, size: int) -> Candidate:
    return replace(candidate, timeline=replace(candidate.timeline, wire_sent=(size,)))


def test_what_fits_is_first_then_what_is_quick_then_what_is_plain_then_what_is_short() -> None:
    order = [
        one("ddp", 1.0, instructions=20), one("zero2", 1.0, instructions=30),
        one("zero2(a=1)", 1.0), one("zero2(a=10)", 1.0), one("ps_sync", 1.0, again=True),
        one("local_sgd", 1.0, semantics="consensus"), one("slow", 1.1), one("large", 0.1, fits=False),
        one("larger", 0.2, fits=False),
    ]  # fmt: skip
    for seed in range(10):
        given = random.Random(seed).sample(order, len(order))
        assert [c.plan.name for c in search(given).candidates] == [c.plan.name for c in order]


def test_what_computes_again_what_nobody_kept_is_left_out() -> None:
    """Of its own recipe, and where it takes, holds and sends the same."""
    plain, again = one("ddp", 1.0), partial(one, seconds=1.0, again=True)
    others = [one("ddp(a=1)", 1.0), sent(again("ddp(b=1)"), 5), again("zero2"), again("ddp(c=1)", memory=99)]
    names = {c.plan.name for c in search([plain, again("ddp(d=1)"), *others]).candidates}
    assert names == {"ddp", "ddp(a=1)", "ddp(b=1)", "zero2", "ddp(c=1)"}


def test_a_gap_is_above_the_bound_that_is_given_or_above_computing_alone() -> None:
    """Of 4 samples at once, which take as long as one: two times a millisecond each operator, on four devices."""
    few = one("ddp", 1.0), one("slow", 3.0)
    given, alone = search(few, bound=0.5), search(few, sizes=(1, 4))
    assert [c.gap for c in given.candidates] == [1.0, 5.0]
    assert (given.gap, given.lower_bound, given.lower_bound_seconds) == (1.0, 0.5, 0.5)
    assert alone.lower_bound == pytest.approx(2 * len(GRAPH.operators) * 1e-3 / 4)
    assert alone.gap == 1.0 / alone.lower_bound - 1


def test_no_minibatch_costs_less_than_on_the_device_that_computes_most_for_a_dollar() -> None:
    """The third: half a dollar an hour where the others take 1, 1.5 and 2 for as much."""
    speeds, prices = (1.0, 2.0, 4.0, 4.0), (1.0, 3.0, 2.0, 8.0)
    device = CLUSTER.devices[0]
    members = tuple(replace(device, speed=s, price=p) for s, p in zip(speeds, prices, strict=True))
    cluster = replace(CLUSTER, root=replace(CLUSTER.root, members=members))
    found = search([one("ddp", 1.0)], "cost", cluster)
    assert found.lower_bound == pytest.approx(found.lower_bound_seconds * sum(speeds) * 0.5 / 3600)


def test_the_best_is_held_against_the_next_of_another_recipe() -> None:
    few = [one("ddp", 1.0), one("ddp(a=1)", 1.5), one("zero2", 2.0)]
    never = "zero2 would take 2.00 times as long and wins at no bandwidth from 500 Mbit/s to 128 Gbit/s, by formula"
    assert never in search(few).explanation
    assert "ddp(a=1) would take 1.50 times as long and" in search(few[:2]).explanation
    assert "would" not in search(few[:1]).explanation


def test_where_the_order_turns_is_said_of_the_objective() -> None:
    """One device at 4 s a step, four at 2 s with messages alone: these cost twice as much, and as much on links of
    twice the bandwidth, below which the first one wins back."""
    single, ddp = one("single", 4.0, devices=1), one("ddp", 2.0)

    def at(candidate: Candidate) -> Callable[[float], float]:
        return constant(4.0) if candidate.plan.name == "single" else lambda factor: 2.0 / factor

    costs = search([single, ddp], "cost", at=at).explanation
    assert "ddp would cost 2.00 times as much and wins above " in costs
    assert costs.endswith(" Gbit/s, by formula")
    found = float(costs.split("above ")[1].split(" ")[0])
    assert found == pytest.approx(2 * CLUSTER.narrowest * 8 / 1e9, rel=0.05)
    time = search([single, ddp], at=at).explanation
    assert "single would take 2.00 times as long and wins below " in time
    assert float(time.split("below ")[1].split(" ")[0]) == pytest.approx(CLUSTER.narrowest * 4 / 1e9, rel=0.05)
    assert "wins" not in search([single, ddp], "memory", at=at).explanation
    assert "wins" not in search([single, one("ddp", 5.0, fits=False)], at=at).explanation


def test_what_does_not_fit_is_said_of_each() -> None:
    first, *others = search([one("ddp", 1.0), one("far", 2.0, fits=False), one("near", 1.5)]).candidates
    assert "fit" not in first.explanation
    assert [c.explanation.endswith("as long as ddp, and does not fit") for c in others] == [False, True]


def test_a_device_takes_as_many_bytes_as_it_has_and_an_unknown_one_any() -> None:
    timeline = one("ddp", 1.0, memory=100).timeline
    found = [fits(timeline, CLUSTER.changed(lambda device, m=m: replace(device, memory=m))) for m in (0, 99, 100)]
    assert found == [True, False, True]
