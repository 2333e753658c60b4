"""Bytes are counted whole where lanes send side by side."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

from partita.transport.processes import Processes


def test_no_lane_forgets_what_another_one_sent() -> None:
    transport, interval = Processes(0), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as lanes:
            list(lanes.map(lambda _: [transport.count(3) for _ in range(5_000)], range(4)))
    finally:
        sys.setswitchinterval(interval)
    assert transport.sent == 4 * 5_000 * 3
