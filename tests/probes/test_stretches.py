"""Stretches of a step, in which operators are timed, and what their times say of each kind of operator."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from partita.cost.prices import FIRST
from partita.graph.batch import substitute
from partita.graph.signature import signature
from partita.probes import operator_timing, stretches
from partita.probes.bench import HOST, Bench
from partita.probes.operator_timing import LEAST, Timed, seconds_in_turn
from partita.probes.stretches import COMMON, Made, Stretch, comparable, make, share_of, shared_of, stretches_of
from tests.small import layers, two_layers

GRAPH = substitute(layers(6), 8)
KINDS = [signature(operator, GRAPH) for operator in GRAPH.operators]


@given(length=st.integers(1, 40), known=st.sets(st.sampled_from(KINDS)))
def test_every_kind_that_is_not_known_is_in_a_stretch(length: int, known: set[str]) -> None:
    """Each begins with a kind that no earlier one has, behind a lead that is not timed."""
    met = set(known)
    for one in stretches_of([GRAPH], length, known):
        assert one.kinds[one.lead] not in met
        assert len(one) <= length + one.lead
        assert one.lead == (0 if length == 1 else min(2, one.timed))
        met |= set(one.kinds[one.lead :])
    assert met >= set(KINDS)


def test_alike_stretches_have_the_same_places() -> None:
    whole, other = (Stretch(substitute(layers(6), batch), 0, 9) for batch in (8, 4))
    assert whole.places == Stretch(GRAPH, 0, 9).places
    assert set(whole.places).isdisjoint(other.places)
    assert whole.cut(4).kinds == whole.kinds[:4]
    assert set(whole.cut(4).places).isdisjoint(whole.places)
    assert [one.kinds for one in whole.apart()] == [(kind,) for kind in whole.kinds]


def test_what_ranks_are_compared_by_is_the_same_whatever_is_known() -> None:
    """A model of many operators: each rank times its own stretches, and the beginnings of a few that all of them do."""
    graphs = [substitute(layers(100), batch) for batch in (8, 16)]
    every, few = stretches_of(graphs, 8), COMMON[1]
    assert len(every) > 4
    shares = [share_of(every * 20, every * 20, rank, 3) for rank in range(3)]
    common = [one.places for one in share_of(every * 20, [], 0, 3)]
    assert all([one.places for one in share[: len(common)]] == common for share in shares)
    assert all(len(one) <= few + one.lead for one in shares[0])
    assert share_of(every[:2], [], 1, 3) == every[:2]


@pytest.mark.parametrize("length", [1, 8, 128])
def test_operators_of_another_day_count_where_their_places_are_known(length: int) -> None:
    every = stretches_of([substitute(layers(60), 8)], length)
    cut = {place for one in shared_of(every) for place in one.places}
    assert not comparable(every, KINDS)
    assert comparable(every, cut | set(KINDS))
    assert not comparable(every, cut - {shared_of(every)[-1].places[-1]})


def spent_on(seconds: list[float]) -> Timed:
    found = Timed()
    whole = Stretch(GRAPH, 0, len(KINDS))
    found.note(Made(whole, whole.places, (), {}, (), 0), seconds)
    return found


@given(st.lists(st.floats(1e-6, 1e-3), min_size=len(KINDS), max_size=len(KINDS)))
def test_kinds_and_first_ones_sum_up_to_what_a_stretch_took(seconds: list[float]) -> None:
    """Where the first of a target takes longer than the others, each part is told once and no part is lost."""
    targets = [operator.target for operator in GRAPH.operators]
    for i, target in enumerate(targets):
        seconds[i] += 2e-3 * (target not in targets[:i])
    found = spent_on(seconds).operators
    more = sum(value for name, value in found.items() if name.endswith(FIRST))
    assert sum(found[kind] for kind in KINDS) + more == pytest.approx(sum(seconds))


def test_what_only_was_a_first_one_has_the_others_part_taken_off() -> None:
    """`mm`s of a kind take 10, the first one 30; the only `sum` took 50, the only `expand` 8, of which no more than
    three quarters can be the cost of being the first."""
    targets = [operator.target for operator in GRAPH.operators]
    taken = {"aten.sum.default": 50.0, "aten.expand.default": 8.0}
    found = spent_on([taken.get(t, 10.0 + 20.0 * (t not in targets[:i])) for i, t in enumerate(targets)]).operators
    assert found["aten.mm.default" + FIRST] == found["aten.t.default" + FIRST] == 20.0
    by = {target: found[kind] for target, kind in zip(targets, KINDS, strict=True)}
    assert (by["aten.sum.default"], by["aten.expand.default"]) == (30.0, 2.0)
    assert (found["aten.sum.default" + FIRST], found["aten.expand.default" + FIRST]) == (20.0, 6.0)


@pytest.mark.parametrize("length", [1, 128])
def test_all_kinds_are_timed(length: int) -> None:
    graph = substitute(two_layers(), 4)
    with torch.no_grad():
        found = seconds_in_turn(stretches_of([graph], length), lambda n: None, total=0.01)
    assert all(found.operators[signature(operator, graph)] >= LEAST for operator in graph.operators)
    assert bool([name for name in found.operators if name.endswith(FIRST)]) == (length > 1)


def test_what_does_not_fit_into_memory_together_shares_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model of many large operators took six times as long to probe as it was given."""
    given = list[float]()

    def noted(held: list[Made], bench: Bench, total: float) -> tuple[list[list[float]], list[float]]:
        given.append(total)
        return [[1.0] * len(made.codes) for made in held], [1.0]

    monkeypatch.setattr(operator_timing, "mean_seconds", noted)
    seconds_in_turn(stretches_of([GRAPH], 4), lambda n: None, replace(HOST, held=1), total=0.5)
    assert len(given) > 2
    assert sum(given) == pytest.approx(0.5)


def test_values_flow_from_operator_to_operator() -> None:
    """What one of a stretch makes is what the next one reads; only what lies before the stretch is made up."""
    (made,) = make(Stretch(GRAPH, 0, len(KINDS)))
    environment = dict(made.sets[0])
    assert not [ref for ref in environment if ref in GRAPH.index]
    with torch.no_grad():
        for code in made.codes:
            code(environment, made.leaves)
    assert {f"w{i}" for i in range(6)} <= set(environment)


@pytest.mark.parametrize("fails", [False, True])
def test_numbers_that_are_nearly_nothing_are_nothing_while_operators_are_timed(fails: bool) -> None:
    """A GRU was predicted to take ten times as long as it took. What is trained afterwards has them."""
    least, met = torch.tensor(1.2e-38), list[float]()

    def tell(done: int) -> None:
        met.append(float(least / 4))
        assert not fails

    with torch.no_grad(), pytest.raises(AssertionError) if fails else nullcontext():
        seconds_in_turn(stretches_of([GRAPH], 128), tell, total=0.01)
    assert met == [0.0]
    assert float(least / 4) > 0


def test_operators_that_are_timed_one_by_one_keep_their_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise nobody could tell on another day what the host's speed was, and all were timed each time."""
    monkeypatch.setattr(stretches, "runs", lambda made: len(made.codes) == 1)
    (whole,) = stretches_of([GRAPH], 128)
    with torch.no_grad():
        found = seconds_in_turn([whole], lambda n: None, total=0.01)
    assert comparable([whole], set(found.places))
