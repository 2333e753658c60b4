"""From made-up measurements the laws by which they were made are found again."""

from __future__ import annotations

from typing import Any

import pytest

from partita.cluster.cluster import Cluster, Device, Group, Link
from partita.cost.wiring import ALONE
from partita.lab.link_costs import MEASURED, wiring_of
from partita.program.instruction import Kind

RATE, LATENCY, AHEAD, START, EACH = 1e8, 2e-3, 1e-3, 1e-4, 1e-10
SIZES = (4, 2**16, 2**20, 2**22)


def made_up(congestion: float, ranks: int = 4) -> list[dict[str, Any]]:
    """What ranks of a whole core each say, on ports of RATE without bursts, where processors are never the limit."""
    share = {kind: (2 if kind is Kind.ALL_REDUCE else 1) * (ranks - 1) / ranks for kind in MEASURED}
    reply: dict[str, Any] = {
        kind: [(n, AHEAD + LATENCY + share[kind] * n / RATE, AHEAD, AHEAD) for n in SIZES] for kind in MEASURED
    }
    reply["message"] = [(n, START + 5e-4 + n / RATE, START + EACH * n) for n in SIZES]
    reply["overlapped"] = {}
    reply["congested"] = [(n, 8, 8 * n * (congestion if n == SIZES[-1] else 0.98) / RATE) for n in SIZES[1:]]
    return [reply] * ranks


@pytest.mark.parametrize("congestion", [1.0, 1.2])
def test_the_laws_are_found_again(congestion: float) -> None:
    machines = Cluster("four", Group("root", (Device(cores=1.0),) * 4, (Link(RATE, 0.0),) * 4))
    found = wiring_of(made_up(congestion), machines)
    assert found.efficiency == pytest.approx(1.0, abs=1e-3)
    assert [row[1] for row in found.curves.of(Kind.ALL_REDUCE, ALONE)] == pytest.approx([LATENCY] * 4, rel=0.01)
    assert (found.start, found.message) == pytest.approx((START, 5e-4), rel=0.01)
    assert (found.sent, found.received) == pytest.approx((EACH, EACH))
    assert [factor for _, factor in found.congestion] == pytest.approx([1.0, 1.0, congestion], rel=1e-3)
