"""Sums over ranks that go away and come back, message by message."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import torch

from partita.runtime.rank import Board, Rank
from partita.runtime.tolerant_sum import TolerantSum
from partita.transport.transport import Pending


def test_who_is_back_for_a_later_round_is_not_waited_for_in_this_one() -> None:
    """Rank 1 dies while rank 0 waits for its word of round 2, and enters again at round 3 before rank 0 adds up: of
    round 2 it neither brings a part nor takes a sum, on a link that is its new one."""
    transport = Mock()
    transport.send.return_value = transport.receive.return_value = pending = Mock(spec=Pending)
    pending.ready.return_value = False
    rank: Any = Mock(spec=Rank, rank=0, board=Board(), away=set(), gone={}, since={}, spare=frozenset({1}))
    rank.transport, rank.there = transport, lambda peer, round: Rank.there(rank, peer, round)
    flat = torch.tensor([3.0])
    steps = TolerantSum(rank, flat, (0, 1), "A0", 2, None).first()
    next(steps)  # the verdict, of a round in which nothing was tried
    next(steps)  # the other's word
    asked = transport.receive.call_count, transport.send.call_count
    assert asked == (1, 1)
    rank.gone[1], rank.since[1] = 1, 3  # it has gone and is back
    for waiting in steps:
        assert waiting.ready()
    assert (transport.receive.call_count, transport.send.call_count) == asked
    assert flat.item() == 6.0  # its own alone counts for both
