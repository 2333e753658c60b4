"""Held-out losses on the way: the best, when training is over by them, and when one is owed."""

from __future__ import annotations

from math import nan

import pytest

from partita.program.held_out import HeldOut, best_of, ended_early, is_over, owed, taken

FALLING: HeldOut = ((10, 0.9), (20, 0.5), (30, 0.5), (40, 0.7))


def test_the_best_is_the_first_of_the_least() -> None:
    assert best_of(FALLING) == (20, 0.5)
    assert best_of(()) is None
    assert best_of(((1, nan),)) is None
    assert best_of(((1, nan), (2, 3.0))) == (2, 3.0)


@pytest.mark.parametrize(
    ("found", "patience", "over"),
    [
        ((), 1, False), (FALLING, 0, False), (FALLING, 2, True), (FALLING, 3, False), (FALLING[:2], 1, False),
        (((1, nan), (2, nan)), 2, True), (((1, 2.0), (2, nan)), 1, True),
    ],
)  # fmt: skip
def test_training_is_over_after_so_many_that_were_no_better(found: HeldOut, patience: int, over: bool) -> None:
    """Equally good is no better, nor is what is no number."""
    assert is_over(found, patience) is over


def test_one_is_owed_where_a_multiple_was_passed_since_the_last() -> None:
    assert [step for step in range(9) if owed((), step, 4)] == [4, 5, 6, 7, 8]
    assert [step for step in range(9, 17) if owed(((9, 1.0),), step, 4)] == [12, 13, 14, 15, 16]
    assert not owed((), 8, 0)


def test_a_run_says_why_it_ended_early() -> None:
    assert taken((), 50) == 50
    assert ended_early(FALLING, 40) == ""
    said = ended_early(FALLING, 50)
    assert said == "training ended after 40 of 50 steps, for no held-out loss since step 20 was better than 0.5"
