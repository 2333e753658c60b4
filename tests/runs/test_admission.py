"""Answers by which a rank that is back is let in: one for all who ask, also where who should answer is gone."""

from __future__ import annotations

from math import inf

import pytest
import torch.distributed as dist

from partita.runs import admission
from partita.runs.admission import Admission, agreed, answer, come_back, last_return, returns
from partita.runs.presence import leave


def test_it_enters_at_the_furthest_round_of_those_who_are_there() -> None:
    store = dist.HashStore()
    back = come_back(store, 2, {5, 4})
    assert (last_return(store, 2), returns(store)) == (back, 1)
    answer(store, back, 0, Admission(0, 7))
    answer(store, back, 1, Admission(0, 9))
    assert agreed(store, back, (0, 1, 4, 5)) == Admission(0, 9)


def test_nowhere_where_ranks_are_in_different_legs() -> None:
    store = dist.HashStore()
    back = come_back(store, 2, ())
    answer(store, back, 0, Admission(0, 7))
    answer(store, back, 1, Admission(1, 1))
    assert agreed(store, back, (0, 1)) is None


def test_one_that_has_ended_is_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is known at once."""
    monkeypatch.setattr(admission, "REJOIN_TIMEOUT", inf)
    store = dist.HashStore()
    back = come_back(store, 2, ())
    answer(store, back, 1, Admission(0, 7))
    leave(store, 0)
    assert agreed(store, back, (0, 1)) is None


def test_for_one_that_is_gone_whoever_asks_first_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """And if it was only slow, it finds that answer, too. Its next return is asked for anew."""
    monkeypatch.setattr(admission, "REJOIN_TIMEOUT", 0.1)
    store = dist.HashStore()
    back = come_back(store, 2, ())
    assert agreed(store, back, (0,)) is None
    answer(store, back, 0, Admission(0, 7))
    assert agreed(store, back, (0,)) is None
    again = come_back(store, 2, ())
    answer(store, again, 0, Admission(0, 8))
    assert agreed(store, again, (0,)) == Admission(0, 8)
