"""What is timed beside a plan's operators can be timed, and costs something."""

from __future__ import annotations

from partita.lab.probe import touch_seconds
from partita.lab.timing import Lane


def test_the_parts_of_a_touch_are_not_negative() -> None:
    assert all(part >= 0.0 for part in touch_seconds(lambda tensors: [t.add_(1.0) for t in tensors], 2**16))


def test_a_lane_returns_when_what_was_handed_to_it_is_done() -> None:
    lane, done = Lane(), []
    for number in range(3):
        lane.carry_out(lambda n=number: done.append(n))
        assert done[-1] == number
