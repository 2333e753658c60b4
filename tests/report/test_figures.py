"""The numbers behind a page's figures, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from partita.report.comparison import Row
from partita.report.figures import POINTS, RANKS, loss_of, over_time, traffic_of
from tests.report.timelines import measured

FIRST = ((0, 1.0, 4.0), (1, 2.0, 2.0), (2, 3.0, 1.0))
SECOND = ((0, 0.5, 6.0), (1, 2.5, 3.0))


def test_losses_of_repeats_meet_at_steps_and_at_moments() -> None:
    """After so many samples where all repeats have been, and at the first one's moments while all of them ran; each the
    middle, the least and the largest."""
    found = loss_of(Row("ddp", None, measured(), losses=(FIRST, SECOND)))
    assert found is not None
    batch = measured().batch
    assert found["samples"] == [[batch, 5.0, 4.0, 6.0], [2 * batch, 2.5, 2.0, 3.0]]
    assert found["seconds"] == [[1.0, 5.0, 4.0, 6.0], [2.0, 4.0, 2.0, 6.0]]
    assert found["repeats"] == 2


def test_a_repeat_that_has_reached_nothing_yet_is_where_it_begins() -> None:
    found = loss_of(Row("ddp", None, measured(), losses=(((0, 0.25, 4.0), (1, 2.0, 2.0)), SECOND)))
    assert found is not None
    assert found["seconds"][0] == [0.25, 5.0, 4.0, 6.0]


def test_what_is_held_out_stands_where_its_steps_ended() -> None:
    """Of a run that went on the seconds of what it cannot say any more are left out, and what is no number."""
    held = ((1, 3.0), (3, 1.5), (4, 1.25), (5, float("nan")))
    found = loss_of(Row("ddp", None, measured(), loss=FIRST, evaluations=held))
    assert found is not None
    batch = measured().batch
    assert found["held"]["samples"] == [[batch, 3.0], [3 * batch, 1.5], [4 * batch, 1.25]]
    assert found["held"]["seconds"] == [[1.0, 3.0], [3.0, 1.5]]


def test_a_long_curve_is_drawn_by_the_means_of_its_stretches_at_their_ends() -> None:
    curve = tuple((step, float(step + 1), float(step)) for step in range(2 * POINTS))
    found = loss_of(Row("ddp", None, measured(), losses=(curve,)))
    assert found is not None
    assert [row[:2] for row in found["seconds"]] == [[2 * k + 2, 2 * k + 0.5] for k in range(POINTS)]


def test_memory_begins_where_lanes_do_and_keeps_its_peaks() -> None:
    series = tuple((10.0 + at, 7 * at % 1000) for at in range(1000))
    ((curve, other),) = (over_time(replace(measured(), memory_over_time=(series, ((11.0, 5),))), 10.0),)
    assert other == [[1.0, 5]]
    assert max(size for _, size in curve) == max(size for _, size in series)
    assert all([10.0 + at, size] == pytest.approx(series[round(at)]) for at, size in curve)


def test_traffic_is_that_between_the_ranks_shown() -> None:
    sent = ((0, 1, 10), (0, RANKS, 20), (RANKS, 0, 30), (RANKS - 1, 0, 40))
    found = traffic_of(replace(measured(), traffic=sent))
    assert found == {"ranks": RANKS + 1, "shown": RANKS, "cells": [[0, 1, 10], [RANKS - 1, 0, 40]]}
