"""Sums over ranks that go away and come back, and their messages, one by one."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import torch

from partita.program.instruction import Instruction, Send
from partita.runtime.membership import DroppableMessage, droppable, stale
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


def test_a_message_of_a_round_that_was_left_out_is_not_put_on_the_new_link() -> None:
    """Rank 1 dies after a lane has begun to send it something of round 2, and enters again at round 3 before the lane
    does: what follows under the same name would be taken for one another."""
    rank: Any = Mock(spec=Rank, rank=0, board=Board(), away=set(), gone={1: 1}, since={1: 3}, spare=frozenset({1}))
    send, began = Instruction("S0", Send("b0", (1,), "S0"), "push"), list[int]()
    rank.board.done["S0"] = 3  # as it is let in
    for round in (2, 3):
        due = droppable(rank, 1, lambda of=round: not stale(rank, send, of), lambda of=round: began.append(of))
        assert isinstance(due, DroppableMessage) is (round == 2)
    assert began == [3]


def test_what_ends_late_does_not_count_for_a_later_round() -> None:
    """A peer is let in at round 3 while a lane ends, or leaves out, an instance of round 1."""
    board = Board()
    board.done["S0"] = 1
    board.finish("S0", 1)
    assert board.done["S0"] == 2
    board.done["S0"] = 3
    board.finish("S0", 2)
    assert board.done["S0"] == 3
