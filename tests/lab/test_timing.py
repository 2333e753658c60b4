"""What is timed beside a plan's operators can be timed, and costs something."""

from __future__ import annotations

import pytest

from partita.graph.batch import substitute
from partita.graph.patterns import shares_memory
from partita.lab.bench import HOST
from partita.lab.extra_lane import ExtraLane
from partita.lab.operator_timing import _pass, make_case
from partita.lab.probe import touch_seconds
from tests.small import two_layers


def test_the_parts_of_a_touch_are_not_negative() -> None:
    assert all(part >= 0.0 for part in touch_seconds(lambda tensors: lambda: [t.add_(1.0) for t in tensors], 2**16))


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
    operators = enumerate(graph.operators)
    examples = [(operator.name, graph, i) for i, operator in operators if not shares_memory(operator, graph)]
    cases = [make_case(*example) for example in examples]
    given = [[set(one) for one in case.sets] for case in cases]
    for number in range(3):
        _pass(cases, number, HOST)
    assert [[set(one) for one in case.sets] for case in cases] == given
