"""The clock, both compiled and plain, against cases worked out by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import pytest

from partita.arrays import Indices
from partita.errors import ProgramError
from partita.simulator.activities import Demands, Places, assemble, resources_of
from partita.simulator.clock import advance
from partita.simulator.plain import advance_plainly
from tests.activities import Activity, activities_of

Ends: TypeAlias = Callable[..., list[float]]  # (rows, *rates)


@pytest.fixture(params=[advance, advance_plainly], ids=["compiled", "plain"])
def ends(request: pytest.FixtureRequest) -> Ends:
    """A function from rows and resources to end times."""
    return lambda rows, *rates: request.param(activities_of(rows), resources_of(rates))[1].tolist()


def plain(rate: float) -> tuple[float, float, float]:
    return (rate, rate, 0.0)


def test_nothing(ends: Ends) -> None:
    assert ends([]) == []


def test_two_equal_flows_share(ends: Ends) -> None:
    assert ends([Activity(demands=((0, 1.0),)), Activity(demands=((0, 2.0),))], plain(1.0)) == [2.0, 3.0]


def test_what_one_cannot_use_the_others_get(ends: Ends) -> None:
    """On one core a quarter-core thread, a message held to half its speed by its link, and a computation.

    cpu 1.0 | thread .25 | message .375 | compute .375 |      the message wants .5, its fair part is .375
    """
    thread = Activity(least=4.0, demands=((0, 1.0),))
    message = Activity(demands=((0, 1.0), (1, 2.0)))
    compute = Activity(demands=((0, 1.0),))
    assert ends([thread, message], plain(1.0), plain(1.0)) == [4.0, 2.0]
    assert ends([thread, message, compute], plain(1.0), plain(1.0)) == pytest.approx([4.0, 8 / 3, 8 / 3])


def test_offers_in_a_circle(ends: Ends) -> None:
    """Each is tightest on the other's resource: x = y with x + 10 y = 1."""
    rows = [Activity(demands=((0, 1.0), (1, 10.0))), Activity(demands=((0, 10.0), (1, 1.0)))]
    assert ends(rows, plain(1.0), plain(1.0)) == pytest.approx([11.0, 11.0])


def test_two_devices(ends: Ends) -> None:
    """device 0 |--1 s--|.1 s|----2 s: 1 unit at 0.5/s----|          device 1 |--2 s--|"""
    rows = [
        Activity(lanes=(0,), demands=((0, 1.0),)),
        Activity(after=(0,), lanes=(2,), latency=0.1, demands=((2, 1.0),)),
        Activity(after=(1,), lanes=(1,), demands=((1, 2.0),)),
    ]
    assert ends(rows, plain(1.0), plain(1.0), plain(0.5)) == pytest.approx([1.0, 3.1, 5.1])


def test_a_bucket_runs_dry_and_refills(ends: Ends) -> None:
    """rate 0.5, peak 1, 1 token: 2 s at 1, then 0.5; a rest of 1 s brings half of it back: 1 s at 1, then 0.5."""
    rows = [
        Activity(demands=((0, 3.0),)),
        Activity(after=(0,), latency=1.0, demands=((0, 2.0),)),
    ]
    assert ends(rows, (0.5, 1.0, 1.0)) == pytest.approx([4.0, 8.0])


def test_least_slows_below_the_rate(ends: Ends) -> None:
    assert ends([Activity(latency=0.5, least=2.0, demands=((0, 1.0),))], plain(10.0)) == [2.5]
    assert ends([Activity(latency=0.5, least=2.0)]) == [2.5]


def test_a_lane_takes_the_lowest_priority_then_the_first_then_the_lowest_index(ends: Ends) -> None:
    rows = [
        Activity(lanes=(0,), least=2.0),
        Activity(after=(4,), lanes=(0,), least=1.0),
        Activity(lanes=(0,), least=1.0),
        Activity(lanes=(0,), least=1.0, priority=-1, after=(4,)),
        Activity(least=0.5),
        Activity(lanes=(0,), least=1.0),
    ]
    assert ends(rows) == [2.0, 6.0, 4.0, 3.0, 0.5, 5.0]


def test_a_lane_is_kept_for_its_first_in_line(ends: Ends) -> None:
    """lane 0 | a a | c c | d d |        c needs both lanes and has come first on lane 1, so d waits behind it
    lane 1 | b | . | c c | d d |"""
    rows = [
        Activity(lanes=(0,), least=2.0),
        Activity(lanes=(1,), least=1.0),
        Activity(lanes=(0, 1), least=2.0),
        Activity(lanes=(1,), least=2.0),
    ]
    assert ends(rows) == [2.0, 1.0, 4.0, 6.0]


def test_any_two_of_three(ends: Ends) -> None:
    waiters = [Activity(least=seconds) for seconds in (3.0, 1.0, 2.0)]
    assert ends([*waiters, Activity(after=(0, 1, 2), need=2, least=1.0)])[3] == 3.0


def test_a_guard_that_has_finished_skips(ends: Ends) -> None:
    """In time it runs, late or at the same moment it is skipped; what follows it goes on."""
    rows = [
        Activity(least=2.0),
        Activity(least=1.0, guard=0),
        Activity(after=(0,), least=1.0, guard=0, lanes=(0,)),
        Activity(after=(2,), least=1.0),
        Activity(least=9.0, lanes=(0,)),
    ]
    assert ends(rows) == [2.0, 1.0, 2.0, 3.0, 9.0]


def test_what_is_skipped_frees_no_lane(ends: Ends) -> None:
    """lane 0 | 4 s ............ | 1 s |       what is skipped at 1 s never held it"""
    rows = [
        Activity(least=1.0),
        Activity(lanes=(0,), least=4.0),
        Activity(after=(0,), guard=0, lanes=(0,), least=1.0),
        Activity(lanes=(0,), least=1.0),
    ]
    assert ends(rows) == [1.0, 4.0, 1.0, 5.0]


def test_a_lane_that_is_held_until_another_ends_is_free_then(ends: Ends) -> None:
    """lane 0 | 1 s | 3 s of another | 1 s |"""
    rows = [Activity(lanes=(0,), least=1.0, until=1), Activity(after=(0,), least=3.0), Activity(lanes=(0,), least=1.0)]
    assert ends(rows) == [1.0, 4.0, 5.0]


def test_what_lasts_no_time_ends_in_its_moment(ends: Ends) -> None:
    rows = [Activity(lanes=(0,)), Activity(after=(0,), lanes=(0,)), Activity(after=(1,)), Activity(lanes=(0,))]
    assert ends(rows) == [0.0] * 4


def test_pairs_in_any_order_make_the_same_activities() -> None:
    def index(*values: int) -> Indices:
        return np.array(values, np.int32)

    flat = assemble(
        3,
        edges=(index(1, 0), index(2, 1)),
        places=Places(index(2, 0), index(0, 1)),
        demands=Demands(index(2, 0, 1), index(0, 0, 0), np.array([1.0, 2.0, 0.0])),
    )
    rows = activities_of(
        [
            Activity(lanes=(1,), demands=((0, 2.0),)),
            Activity(after=(0,)),
            Activity(after=(1,), lanes=(0,), demands=((0, 1.0),)),
        ]
    )
    assert all(np.array_equal(getattr(flat, name), getattr(rows, name)) for name in flat.__slots__)


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        (Activity(after=(7,)), "successor|activity"),
        (Activity(guard=3), "guard"),
        (Activity(lanes=(-1,)), "lane"),
        (Activity(latency=-1.0), "latency"),
        (Activity(demands=((0, -1.0),)), "amount"),
        (Activity(demands=((4, 1.0),)), "resource 4"),
    ],
)
def test_arrays_that_contradict_are_refused(row: Activity, sentence: str) -> None:
    with pytest.raises(ProgramError, match=sentence):
        advance(activities_of([row]), resources_of([plain(1.0)]))


@pytest.mark.parametrize("row", [(0.0, 1.0, 1.0), (2.0, 1.0, 1.0), (1.0, 2.0, -1.0)])
def test_resources_that_give_nothing_are_refused(row: tuple[float, float, float]) -> None:
    with pytest.raises(ProgramError):
        resources_of([row])
