"""Computing makes way for messages that fly, and not for those that nobody may have sent."""

from __future__ import annotations

from typing import Any

import pytest

from partita.program.instruction import Instruction, Receive, Send, Space
from partita.runtime import worker
from tests.runtime.test_choosing import server


@pytest.mark.parametrize(
    ("act", "flying"), [(Send("b0", (0,), "up"), 1), (Receive("b0", (0,), "down", Space.INBOX), 0)]
)
def test_what_is_asked_for_does_not_fly(act: Send | Receive, flying: int) -> None:
    class Under:
        def ready(self) -> bool:
            return False

        def block(self, timeout: float) -> bool:
            return True

    rank, _ = server()
    begun: Any = lambda rank, instruction, round: Under()  # noqa: E731
    run = worker.instance(rank, Instruction("I", act, "from"), 0, lambda _: False, begin=begun)
    assert isinstance(next(run), Under)
    assert rank.pace.in_flight == flying
    assert list(run) == []
    assert rank.pace.in_flight == 0
