"""What ranks have timed, put together."""

from __future__ import annotations

import pytest

from partita.lab.slowdowns import as_then, of_all, pooled, steady


def test_shares_are_rid_of_their_ranks_slowdown() -> None:
    """Four operators of 1 to 4 s: all ranks time two, one each of the others; two ranks take half as much again."""
    seconds = {"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0}
    shares = (["a", "b", "c"], ["a", "b", "d"], ["a", "b"])
    taken = [{n: slow * seconds[n] for n in names} for slow, names in zip((0.5, 1.5, 1.0), shares, strict=True)]
    found, places, slowdowns = pooled([{"operators": one, "places": one} for one in taken], {})
    assert found == pytest.approx(seconds)
    assert places == pytest.approx({"a": 1.0, "b": 2.0})
    assert slowdowns == pytest.approx((0.5, 1.5, 1.0))


def test_what_is_known_is_kept_and_the_slowdown_is_of_today() -> None:
    replies = [{"operators": {"a": 3.0, "b": 6.0}, "places": {"@0": 1.2}}, {"operators": {}, "places": {"@0": 2.4}}]
    found, places, slowdowns = pooled(replies, {"@0": 1.0, "a": 2.0})
    assert found == pytest.approx({"a": 2.0, "b": 5.0})
    assert places == {"@0": 1.0}
    assert slowdowns == pytest.approx((1.2, 2.4))


def test_nothing_is_known_where_nobody_can_tell_how_fast_the_host_was() -> None:
    """Operators that another model's stretches had: in this one's places nobody has timed anything yet."""
    replies = [{"operators": {"a": 3.0 * slow}, "places": {"@0": 1.5 * slow}} for slow in (0.5, 1.0, 1.5)]
    found, places, slowdowns = pooled(replies, {"@1": 1.0, "a": 2.0, "b": 1.0})
    assert found == pytest.approx({"a": 3.0})
    assert places == pytest.approx({"@0": 1.5})
    assert slowdowns == pytest.approx((0.5, 1.0, 1.5))


def test_a_core_that_is_slow_now_and_then_is_as_quick_as_the_others() -> None:
    assert steady([(0.9, 1.1), (0.8, 1.2), (0.95, 1.05)]) == pytest.approx((0.9, 1.1))
    assert steady([(0.9, 1.1), (1.1, 0.9)]) == pytest.approx((1.0, 1.0))
    assert steady([(1.0, 1.0), (1.0, 3.0), (1.0, 1.0)]) == pytest.approx((1.0, 1.0))


def test_a_moment_in_which_all_were_slow_does_not_count() -> None:
    assert steady([(1.0, 1.0), (1.1, 1.1), (2.0, 2.0)]) == pytest.approx((1.1, 1.1))


def test_ranks_that_were_not_timed_are_as_slow_as_the_others() -> None:
    assert of_all((1.2,), 3) == (1.2, 1.2, 1.2)


def test_operators_known_from_another_day_are_brought_to_what_they_are_now() -> None:
    """A host that was twice as slow: what else is measured now is not to count half. Ranks stay as unlike as they
    are."""
    found, _, times = as_then({"a": 2.0, "b": 6.0}, {}, [(0.4, 0.6), (0.45, 0.55)])
    assert found == pytest.approx({"a": 1.0, "b": 3.0})
    assert steady(times) == pytest.approx((0.85, 1.15))
    assert as_then({"a": 2.0}, {"@x:0": 2.0}, [(1.0, 1.0)]) == ({"a": 2.0}, {"@x:0": 2.0}, ((1.0, 1.0),))


def test_a_host_that_stays_as_it_was_is_no_slower_later() -> None:
    """What was slower by half than on another day while costs were measured counted so once in them, and once more in
    each time between runs."""
    then = [{"operators": {"a": 3.0}, "places": {"@x:0": 3.0}}] * 2
    found, places, slowdowns = pooled(then, {"a": 2.0, "@x:0": 2.0})
    found, places, times = as_then(found, places, [slowdowns, slowdowns])
    assert found == pytest.approx({"a": 3.0})
    assert steady([*times, *[pooled(then, places)[2]] * 5]) == pytest.approx((1.0, 1.0))
