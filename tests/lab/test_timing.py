"""What is timed beside a plan's operators can be timed, and costs something."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from partita.graph.batch import substitute
from partita.graph.patterns import shares_memory
from partita.lab.bench import HOST, Bench
from partita.lab.extra_lane import ExtraLane
from partita.lab.operator_timing import _pass
from partita.lab.probe import passed_bytes, touch_seconds
from partita.lab.stretches import make, stretches_of
from partita.lab.timing import _disturbance, disturb, disturbance_of, elsewhere, few_operators, forget
from partita.runtime.device import CPU
from tests.small import two_layers


def test_the_parts_of_a_touch_are_not_negative() -> None:
    assert all(part >= 0.0 for part in touch_seconds(lambda tensors: lambda: [t.add_(1.0) for t in tensors], 2**16))


def test_what_lies_between_two_calls_is_as_long_as_a_step() -> None:
    """A copy in a model of 1 MB was timed behind a pass over 16 MB, and predicted to take three times what it takes."""
    graph = two_layers()
    weights = graph.parameter_elements * 4
    few, many = (passed_bytes(graph, batch) for batch in (1, 5))
    assert weights < few < many
    made = sum(t.size(1) for o in graph.operators if not shares_memory(o, graph) for t in o.outputs if t is not None)
    assert few == weights + made  # SGD without momentum keeps nothing


@pytest.mark.parametrize("other_work", [disturb, elsewhere])
def test_other_work_passes_over_as_much_as_lies_between(other_work: Callable[[Bench], None]) -> None:
    forget()
    other_work(replace(HOST, between=4096))
    passed = _disturbance(CPU)[0]
    assert passed[:1024].eq(1.0).all()
    assert passed[1024:].eq(0.0).all()
    other_work(HOST)
    assert passed.eq(_disturbance(CPU)[0]).all()
    assert passed[1024:].eq(1.0).all()
    forget()


def test_a_lane_returns_when_what_was_handed_to_it_is_done() -> None:
    lane, done = ExtraLane(), []
    for number in range(3):
        lane.carry_out(lambda n=number: done.append(n))
        assert done[-1] == number
        assert not lane.busy


def test_what_a_lane_raises_is_raised_where_it_was_asked() -> None:
    with pytest.raises(ZeroDivisionError):
        ExtraLane().carry_out(lambda: 1 // 0)  # type: ignore[return-value, arg-type]


def test_what_a_turn_makes_is_free_memory_at_the_next() -> None:
    """Results that lived on had each turn fault in new pages, which took up to three quarters of what was measured."""
    graph = substitute(two_layers(), 4)
    held = [made for length in (1, 128) for one in stretches_of([graph], length) for made in make(one)]
    given = [[set(one) for one in made.sets] for made in held]
    for number in range(3):
        _pass(held, number, HOST)
    assert [[set(one) for one in made.sets] for made in held] == given


def test_what_a_thread_does_is_done_as_long_as_it_is_timed() -> None:
    calls: list[int] = []
    assert disturbance_of(lambda: calls.append(sum(range(1000))), few_operators, 0.005) >= 0.0
    assert len(calls) > 10


def test_a_thread_that_fails_disturbs_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waited for it to end waited for good."""
    met: list[type[BaseException] | None] = []
    monkeypatch.setattr(threading, "excepthook", lambda failure: met.append(failure.exc_type))
    assert disturbance_of(lambda: 1 // 0, few_operators, 0.005) >= 0.0
    assert met == [ZeroDivisionError]
