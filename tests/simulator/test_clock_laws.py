"""Laws of any schedule that the clock may tell."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.simulator.activities import Resources, resources_of
from partita.simulator.clock import advance
from tests.activities import Activity, activities_of

SECONDS = st.floats(0.0, 3.0)
AMOUNT = st.floats(0.01, 3.0)
RATES = st.tuples(st.floats(0.1, 3.0), st.floats(0.0, 2.0), st.floats(0.0, 2.0))


@st.composite
def programs(draw: st.DrawFn, apart: bool = False) -> tuple[list[dict[str, Any]], list[tuple[float, float, float]]]:
    """The fields of some rows, and rates: with 3 resources and lanes, or `apart`, each row its resource and no lane."""
    count = draw(st.integers(1, 12))
    rows = [
        {
            "after": tuple(draw(st.lists(st.integers(0, i - 1), unique=True, max_size=2))) if i else (),
            "lanes": () if apart else tuple(draw(st.lists(st.integers(0, 2), unique=True, max_size=2))),
            "latency": draw(SECONDS),
            "least": draw(SECONDS),
            "demands": ((i if apart else draw(st.integers(0, 2)), draw(AMOUNT)),),
        }
        for i in range(count)
    ]
    size = count if apart else 3
    rates = draw(st.lists(RATES, min_size=size, max_size=size))
    return rows, [(rate, rate + more, burst) for rate, more, burst in rates]


@given(programs())
@settings(max_examples=150, deadline=None)
def test_no_schedule_beats_its_longest_path_or_its_busiest_resource(program: Any) -> None:
    """PM-16: the makespan is at least the critical path and the largest load of a device."""
    rows, rates = [Activity(**fields) for fields in program[0]], program[1]
    start, end = advance(activities_of(rows), resources_of(rates))
    early = [0.0] * len(rows)
    for i, row in enumerate(rows):
        ((resource, amount),) = row.demands
        alone = row.latency + max(row.least, amount / rates[resource][1])
        early[i] = max((early[before] for before in row.after), default=0.0) + alone
        assert end[i] - start[i] >= alone * (1 - 1e-9)
        assert all(start[i] >= end[before] for before in row.after)
    assert max(end) >= max(early) * (1 - 1e-9)
    for resource, (rate, peak, burst) in enumerate(rates):
        load = sum(amount for row in rows for used, amount in row.demands if used == resource)
        peak = peak if burst else rate
        assert max(end) >= max(load / peak, (load - burst) / rate) * (1 - 1e-9)


@given(programs())
@settings(max_examples=50, deadline=None)
def test_a_lane_carries_one_at_a_time(program: Any) -> None:
    rows, rates = [Activity(**fields) for fields in program[0]], program[1]
    start, end = advance(activities_of(rows), resources_of(rates))
    for lane in range(3):
        spans = sorted((start[i], end[i]) for i, row in enumerate(rows) if lane in row.lanes)
        assert all(before[1] <= after[0] for before, after in pairwise(spans))


@given(programs(apart=True), st.integers(0, 11))
@settings(max_examples=100, deadline=None)
def test_where_nothing_is_shared_more_never_slows(program: Any, which: int) -> None:
    rows, rates = [Activity(**fields) for fields in program[0]], program[1]
    activities, before = activities_of(rows), resources_of(rates)
    factor = np.ones(before.size)
    factor[which % before.size] = 2.0
    after = Resources(before.rate * factor, before.peak * factor, before.burst)
    assert (advance(activities, after)[1] <= advance(activities, before)[1] * (1 + 1e-9)).all()


@given(programs())
@settings(max_examples=50, deadline=None)
def test_time_has_no_unit(program: Any) -> None:
    """Twice the latencies and leasts at half the rates takes twice as long."""
    rows, rates = [Activity(**fields) for fields in program[0]], program[1]
    slow = [replace(row, latency=2 * row.latency, least=2 * row.least) for row in rows]
    half = [(rate / 2, peak / 2, burst) for rate, peak, burst in rates]
    end = advance(activities_of(rows), resources_of(rates))[1]
    np.testing.assert_allclose(advance(activities_of(slow), resources_of(half))[1], 2 * end, rtol=1e-9)
