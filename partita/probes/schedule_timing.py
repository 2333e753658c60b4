"""Micro-benchmarks of all-reduces by several schedules: which of them is best for a size is decided by how threads wake
each other, which single messages do not tell."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from functools import partial
from statistics import median
from typing import Final

import torch
import torch.distributed as dist

from partita.probes.extra_lane import Call, ExtraLane
from partita.probes.sums import LANE, summing
from partita.probes.timing import AHEAD, computed
from partita.program.layout import widest
from partita.program.space import Kind
from partita.transport.hops import by_schedule
from partita.transport.processes import Processes
from partita.transport.transport import Pending, Steps
from partita.units import Bytes, Seconds
from partita.wire.algorithms import BACKEND, all_reduce
from partita.wire.schedule import even_edges, in_halves

HOPELESS: Final = 2.0  # times as long as the best: such a one is not timed again
ROUNDS: Final = ((2**20, 5), (2**22, 2))  # up to which size how many follow one another in a turn; beyond them one


def schedule_seconds(
    names: Sequence[str], sizes: Sequence[Bytes], turns: int = 5
) -> dict[str, list[tuple[Bytes, Seconds]]]:
    """By each of these schedules the (bytes, seconds) of all-reduces among all ranks, which come to them from
    computing: medians of `turns` in which schedules take turns; the first turn does not count."""
    found = {name: list[tuple[Bytes, Seconds]]() for name in names}
    transport = summing()
    with ExtraLane() as lane:
        for size in sizes:
            tensor, walls = torch.zeros(max(size // 4, 1)), {name: list[Seconds]() for name in names}
            for turn in range(turns + 1):
                best = min((min(times) for times in walls.values() if times), default=math.inf)
                for name, times in walls.items():
                    if turn < 2 or min(times) <= HOPELESS * best:
                        call = partial(all_reduced, name, transport, tensor)
                        times.append(_slowest(lane, call, next((many for most, many in ROUNDS if size <= most), 1)))
            for name, times in walls.items():
                found[name].append((size, median(times[1:])))
    return found


def all_reduced(name: str, transport: Processes, tensor: torch.Tensor) -> Pending | Steps:
    """An all-reduce by the backend itself, or by one of our schedules, message by message, started."""
    group = tuple(range(dist.get_world_size()))
    if name == BACKEND:
        edges = even_edges(tensor.numel(), len(group))
        return transport.collective(Kind.ALL_REDUCE, tensor, group, LANE, name, 0, edges)
    schedule = all_reduce(name, len(group))
    edges = even_edges(tensor.numel(), schedule.parts)
    if name == "ring":
        schedule, edges = in_halves(schedule, edges, widest(edges) * tensor.element_size())
    return by_schedule(transport, schedule, tensor, group, name, 0, edges=edges)


def _slowest(lane: ExtraLane, call: Call, rounds: int) -> Seconds:
    """Seconds of a call, a mean over rounds, from when the last rank has computed, as it has before a collective of a
    step, until the last one is through; the same on all ranks, which are to have one machine's clock."""
    moments = torch.zeros(2, rounds, dtype=torch.float64)
    dist.barrier()
    for n in range(rounds):
        computed(AHEAD)
        moments[0, n] = time.perf_counter()
        lane.carry_out(call)
        moments[1, n] = time.perf_counter()
    dist.all_reduce(moments, dist.ReduceOp.MAX)
    return float((moments[1] - moments[0]).mean())
