"""Activities of the clock, written one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from partita.simulator.activities import Activities, Demands, GateSpec, Places, assemble
from partita.units import Seconds


@dataclass(frozen=True, slots=True)
class Activity:
    """One activity for `activities_of`: `after` are predecessors, `need` of which must have finished (-1: all of
    them); `demands` are (resource, amount) pairs, each with its `times` and `again` where these are given; it takes
    `weights` of its lanes (1) and holds them until the end of `until` (-1: its own); the rest as in Activities."""

    after: tuple[int, ...] = ()
    need: int = -1
    lanes: tuple[int, ...] = ()
    priority: int = 0
    latency: Seconds = 0.0
    least: Seconds = 0.0
    demands: tuple[tuple[int, float], ...] = ()
    times: tuple[float, ...] = ()
    again: tuple[bool, ...] = ()
    guard: int = -1
    weights: tuple[float, ...] = ()
    until: int = -1
    member: int = -1


def activities_of(rows: Sequence[Activity], credit: Sequence[float] = (), gates: Sequence[GateSpec] = ()) -> Activities:
    """The activities of a list; `after`, `guard` and `until` count its rows, `credit` the first lanes (1 where there is
    none)."""
    edges = np.array([(before, i) for i, row in enumerate(rows) for before in row.after], np.int32).reshape(-1, 2)
    lanes = np.array([(i, lane) for i, row in enumerate(rows) for lane in row.lanes], np.int32).reshape(-1, 2)
    demands = [(i, resource, amount) for i, row in enumerate(rows) for resource, amount in row.demands]
    weights = [weight for row in rows for weight in row.weights or (1.0,) * len(row.lanes)]
    until = [row.until if row.until >= 0 else i for i, row in enumerate(rows) for _ in row.lanes]
    credits = np.ones(max([len(credit) - 1, *(lane for row in rows for lane in row.lanes)], default=-1) + 1)
    credits[: len(credit)] = credit
    times = [users for row in rows for users in row.times or (1.0,) * len(row.demands)]
    return assemble(
        len(rows),
        edges=(edges[:, 0], edges[:, 1]),
        places=Places(
            lanes[:, 0], lanes[:, 1], np.array(weights, np.float64), until=np.array(until, np.int32), credit=credits
        ),
        demands=Demands(
            np.array([demand[0] for demand in demands], np.int32),
            np.array([demand[1] for demand in demands], np.int32),
            np.array([demand[2] for demand in demands], np.float64),
            times=np.array(times, np.float64),
            again=np.array([more for row in rows for more in row.again or (False,) * len(row.demands)], np.bool_),
        ),
        need=np.array([len(row.after) if row.need < 0 else row.need for row in rows], np.int32),
        priority=np.array([row.priority for row in rows], np.int64),
        latency=np.array([row.latency for row in rows], np.float64),
        least=np.array([row.least for row in rows], np.float64),
        guard=np.array([row.guard for row in rows], np.int32),
        gates=(np.array([row.member for row in rows], np.int32), gates),
    )
