"""Answers by which a rank that is back is let in: one for all who ask, also where who should answer is gone."""

from __future__ import annotations

import pytest
import torch.distributed as dist

from partita.runs import rejoin


def test_an_answer_is_what_the_rank_said() -> None:
    store = dist.HashStore()
    store.compare_set("clock/2/1/0", "", "0:7")
    assert rejoin._answer(store, "clock/2/1/0", "over/0") == "0:7"


def test_one_that_has_ended_is_too_late() -> None:
    store = dist.HashStore()
    store.set("over/0", "")
    assert rejoin._answer(store, "clock/2/1/0", "over/0") == rejoin.LATE


def test_for_one_that_is_gone_whoever_asks_first_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """And if it was only slow, it finds that answer, too."""
    monkeypatch.setattr(rejoin, "REJOIN_TIMEOUT", 0.1)
    store = dist.HashStore()
    assert rejoin._answer(store, "clock/2/1/0", "over/0") == rejoin.LATE
    store.compare_set("clock/2/1/0", "", "0:7")
    assert rejoin._answer(store, "clock/2/1/0", "over/0") == rejoin.LATE
