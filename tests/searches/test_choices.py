"""What is nearest, equal or at an edge, by hand: where orders turn, which minibatches are good, which law is a line."""

from __future__ import annotations

from dataclasses import replace

import pytest

from partita.searches.explaining import break_even, widened
from partita.searches.minibatch_choice import MinibatchChoice, both_good
from partita.searches.steps_to_loss import MeasuredMinibatch, fitted, slope
from partita.searches.sweep import crossings
from tests.small import cluster_of


def test_of_two_turns_the_nearest_is_told() -> None:
    """The other is faster up to an eighth of the bandwidth, and from `above` times it on."""

    def best(factor: float) -> float:
        return 1.0

    def other(above: float) -> float | None:
        found = break_even(best, lambda factor: 0.5 if factor < 1 / 8 or factor > above else 2.0, 1e9)
        assert found is not None
        assert found[1] is (found[0] > 1e9)
        return found[0]

    assert other(3.0) == pytest.approx(3e9, rel=0.1)
    assert other(12.0) == pytest.approx(1e9 / 8, rel=0.1)


def test_plans_that_take_as_long_never_turn() -> None:
    assert break_even(lambda factor: 1 / factor, lambda factor: 1 / factor, 1e9) is None


def test_a_wider_link_s_burst_lasts_as_long() -> None:
    cluster = cluster_of(2, 1e6).rewired(lambda link: replace(link, burst=1000))
    links = {(link.bandwidth, link.burst) for link in widened(cluster, 4.0).root.ports}
    assert links == {(4e6, 4000)}


def test_curves_that_meet_at_a_point_cross_there_once() -> None:
    rising, level = ((1.0, 1.0), (2.0, 2.0), (4.0, 4.0)), ((1.0, 2.0), (2.0, 2.0), (4.0, 2.0))
    assert crossings(rising, level) == (pytest.approx((2.0, True)),)
    assert crossings(level, rising) == (pytest.approx((2.0, False)),)


def choice(batch: int, step: float, loss: float, *, fits: bool = True) -> MinibatchChoice:
    return MinibatchChoice(MeasuredMinibatch(batch, 10, loss=loss), 10.0, "ddp", step, fits, "costs")


def test_a_good_minibatch_is_within_a_tenth_of_the_most_and_of_the_least() -> None:
    """Of those that fit: 100 samples a second are the most, a loss of 2 the least."""
    good = [choice(10, 0.1, 2.0), choice(9, 0.1, 2.19), choice(20, 0.2, 2.2)]
    bad = [choice(8, 0.1, 2.0), choice(40, 0.4, 2.21)]
    lost = [choice(80, 0.1, 1.0, fits=False)]
    assert both_good([*good, *bad, *lost]) == {9, 10, 20}
    assert both_good([*good, choice(30, 0.3, 0.0)]) == frozenset()
    assert both_good(lost) == frozenset()


def test_a_law_of_steps_that_stay_is_a_floor_and_accounts_for_all() -> None:
    points = [MeasuredMinibatch(batch, 50) for batch in (4, 8, 16)]
    law = fitted(points)
    assert (law.steps(4), law.steps(1024), law.r2) == (pytest.approx(50), pytest.approx(50), 1.0)
    assert slope(*points[:2]) == 0.0
    assert slope(MeasuredMinibatch(4, 80), MeasuredMinibatch(16, 20)) == -1.0
