"""What a server's ledger notes, what its steady state is, and how far two of them are apart."""

from __future__ import annotations

from dataclasses import replace
from math import isnan

import pytest

from partita.program.instruction import Apply
from partita.program.ledger import LOST, Merge, compared, staleness_of, steady, step_of
from partita.program.versions import Ledger


def of_staleness(*each: int) -> list[Merge]:
    """One worker's turns, whose contributions are as stale as `each` says, time and again."""
    return [
        Merge("b", 0, turn, turn + 100, turn + 100 + each[turn % len(each)], 1) for turn in range(5 + 10 * len(each))
    ]


@pytest.mark.parametrize(
    ("one", "other", "apart"), [((1,), (1,), 0.0), ((0,), (3,), 1.0), ((0, 1), (0, 1), 0.0), ((0, 1), (1,), 0.5)]
)
def test_ledgers_are_as_far_apart_as_their_distributions(
    one: tuple[int, ...], other: tuple[int, ...], apart: float
) -> None:
    """Total variation: 0 for the same, 1 where nothing is in common; the same both ways."""
    found = compared(of_staleness(*one), of_staleness(*other))
    assert found is not None
    assert found == pytest.approx((sum(one) / len(one), sum(other) / len(other), apart), abs=0.06)
    back = compared(of_staleness(*other), of_staleness(*one))
    assert back is not None
    assert back[2] == pytest.approx(found[2])


def test_a_server_notes_what_came_and_what_was_lost() -> None:
    """Of each worker's turns in order, the version that it had read; where several make a step, the last one of these
    makes the version, unless each is a change of weights; who is late in a quorum is of its round."""
    ledger, one = Ledger(at=7), Apply("b", 1, share=0.5, among=2)
    two = replace(one, need=2)
    assert [ledger.merge(two, 0), ledger.merge(two, 1)] == [False, True]
    ledger.give("b", 1)
    assert ledger.merge(replace(two, delta=True), 2)
    ledger.lose("b", 1)
    assert ledger.merges == [
        Merge("b", 1, 0, 0, 0, 7), Merge("b", 1, 1, 0, 0, 7), Merge("b", 1, 2, 1, 1, 7), Merge("b", 1, 3, 1, LOST, 7)
    ]  # fmt: skip
    assert not ledger.merge(replace(one, drop=True), 9)
    assert ledger.merges[-1].turn == 9
    assert ledger.version["b"] == 2


def test_the_steady_state_is_of_each_server_and_of_what_came() -> None:
    """From behind the first merge of turn 1 to before the first one of the last turn, on each of two servers; a lost
    contribution has no staleness."""

    def merges(at: int, first: int) -> list[Merge]:
        return [Merge("b", w, turn, 2 * turn, 2 * turn + w, at) for turn in range(first, first + 4) for w in (0, 1)]

    lost = Merge("b", 1, 2, 4, LOST, 3)
    several = [*merges(3, 0)[:4], lost, *merges(3, 0)[4:], *merges(4, 4)]
    found = [(merge.at, merge.turn, merge.worker) for merge in steady(several, 1)]
    assert found == [(3, 1, 1), (3, 2, 0), (3, 2, 1), (4, 4, 1), (4, 5, 0), (4, 5, 1), (4, 6, 0), (4, 6, 1)]
    assert staleness_of(several, skip=1) == {0: 3 / 8, 1: 5 / 8}


def test_a_step_s_seconds_are_counted_from_who_is_first_to_who_is_first() -> None:
    """A worker of 1 s a round and one that ends its first round behind 3 s and each other one in 2: from 2 s, when the
    first has done two, to its end at 6 s it has done 4 rounds, the other from 2 / 3 of a round to 2.5; each is half a
    step."""
    ends = [[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [3.0, 5.0, 7.0, 9.0]]
    assert step_of(ends, [0.5, 0.5], 2) == pytest.approx(4 / (0.5 * (4 + 2.5 - 2 / 3)))
    assert isnan(step_of(ends, [0.5, 0.5], 6))
