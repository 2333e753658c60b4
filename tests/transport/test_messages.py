"""Who speaks with a process that has ended says which one that was."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest
import torch.distributed as dist

from partita.errors import RunError
from partita.transport.messages import come, gather, spread, wait_for

GONE = RuntimeError("Connection closed by peer [127.0.0.1]:1\nand where")


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A line to a store; until it is closed, that is kept here."""
    kept = [dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)]  # type: ignore[attr-defined]
    store = dist.TCPStore("127.0.0.1", kept[0].port, None, False)  # type: ignore[attr-defined]
    monkeypatch.setattr(dist.distributed_c10d, "_get_default_store", lambda: store)
    return kept


@pytest.mark.parametrize("ask", [partial(wait_for, "here", [1]), partial(gather, {}, 1, 2)])
def test_a_store_that_is_gone_is_named(ask: Callable[[], object], line: list[Any]) -> None:
    """Such as that of a rank 0 which was killed where nobody watches over ranks."""
    come("here", 1)
    assert wait_for("here", [1]) == [""]
    line.clear()
    with pytest.raises(RunError, match=r"the store at which ranks meet, .* is gone \(.*\); look at what it said last"):
        ask()


@pytest.mark.parametrize("ask", [gather, spread])
def test_a_rank_that_is_gone_is_named(ask: Callable[..., object], line: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("send", "recv"):
        monkeypatch.setattr(dist, name, Mock(side_effect=GONE))
    come("met/2/1", 1)
    with pytest.raises(RunError, match=r"rank 1 is gone \(RuntimeError: Connection closed by peer \[127.0.0.1\]:1\);"):
        ask({}, 0, 2)
