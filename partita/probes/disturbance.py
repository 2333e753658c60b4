"""What messages and computing cost each other on a rank, beyond what either takes by itself.

    the step's operators    |aabbbccd|aabbbccd|aaabbbbbcccdd|aaabbbbbcccdd|aabbbccd|aabbbccd|
    a lane and its threads                    |m m m m m m m m m m m m m|
                                              |-- of the process: aabbbccd, what m takes alone, and this --|

Timed alone, either has the caches to itself, and no other thread of its rank to give way to. How much that is depends
on the operators: a transformer's step loses half as much again as products of small matrices.

Behind a wait, as for messages, operators find less of their own in the caches, the longer it was the less:

    the step's operators    |aabbbccd| u     |aaabbbccd| u           |aaaabbbbccd| u |aabbbccd|       u: an update
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from functools import partial
from itertools import accumulate, cycle, islice, repeat
from statistics import median
from typing import Any, Final

import numpy as np
import torch
import torch.distributed as dist

from partita.graph.batch import substitute
from partita.graph.graph import Graph
from partita.probes.bench import HOST
from partita.probes.extra_lane import ExtraLane
from partita.probes.link_timing import round_about
from partita.probes.operator_timing import without_denormals
from partita.probes.overlap_timing import overlapped_seconds
from partita.probes.stretches import acted, acting, make, shared_of, stretches_of
from partita.probes.timing import elsewhere, seconds_behind, slowed_by
from partita.probes.touches import touched_bytes
from partita.simulator.cooling import fetched
from partita.transport.processes import Processes
from partita.units import Bytes, Seconds

LARGEST: Final[Bytes] = 2**22
LEAST: Final = 8  # messages each way
TAKES: Final = 3
WAITS: Final[tuple[Seconds, ...]] = (3e-3, 1e-2, 3e-2, 1e-1)
TURNS: Final = 9
UNDISTURBED: Final[dict[str, Any]] = {"size": 1, "taken": 0.0, "cooling": (), "overlapped": {}}
UNKNOWN: Final = 128  # rows and columns of the products that stand for a model which is one operator


def rank_disturbance(
    graph: Graph, batch: int, rank: int, world: int, largest: Bytes, kinds: Collection[str]
) -> dict[str, Any]:
    """Core-seconds of this process `taken` for each byte that it sends or receives in messages of a `size`, `largest`
    at most, while it computes the step of `batch` samples or some stretches of it; without those of computing alone.
    Messages go round all ranks, from neighbour to neighbour. The median of three takes: one in four is a third off.
    Core-seconds that computing takes more behind each of some waits (`cooling`). And what collectives of some `kinds`
    and messages take meanwhile (`overlapped`), which is all that is known of a model that is one operator."""
    if graph.rung == "opaque":
        with ExtraLane() as lane:
            return {**UNDISTURBED, "overlapped": overlapped_seconds(largest, kinds, products(), lane)}
    size = min(largest, LARGEST)
    many = max(4 * largest // size, LEAST)
    held = [made for one in shared_of(stretches_of([substitute(graph, batch)], HOST.stretch)) for made in make(one)]
    compute = partial(acted, held)

    def begin() -> Callable[[], bool]:
        lane.begin(partial(round_about, Processes(rank), many, (rank - 1) % world, (rank + 1) % world, size))
        return lambda: lane.busy

    with torch.no_grad(), without_denormals(), ExtraLane() as lane:
        compute()
        takes = [slowed_by(begin, compute, dist.barrier, clock=time.process_time) for _ in range(TAKES)]
        cooling = cooling_of(compute, partial(elsewhere, replace(HOST, between=touched_bytes(HOST, graph))))
        overlapped = overlapped_seconds(largest, kinds, acting(cycle(held)), lane)
    return {"size": size, "taken": median(takes) / (2 * many * size), "cooling": cooling, "overlapped": overlapped}


def products() -> Iterator[torch.Tensor]:
    """One product of small matrices after the other."""
    factor = torch.randn(UNKNOWN, UNKNOWN)
    return (torch.mm(one, one) for one in repeat(factor))


def cooling_of(compute: Callable[[], Any], other: Callable[[], Any]) -> list[tuple[Seconds, Seconds]]:
    """(wait, core-seconds that what computes takes more behind it, when all is fetched again), by ascending waits, from
    computing behind `other` work and each of them in turn; none takes less than one behind a shorter wait."""
    spent: dict[Seconds, list[Seconds]] = {wait: [] for wait in (0.0, *WAITS)}
    for _ in range(TURNS):
        for wait, own in spent.items():
            own.append(seconds_behind(compute, replace(HOST, ahead=other, rest=wait)))
    usual = median(spent.pop(0.0))
    more = accumulate((median(own) - usual for own in spent.values()), max, initial=0.0)
    part = fetched(np.array([usual])).item()
    return [(wait, beyond / part) for wait, beyond in zip(spent, islice(more, 1, None), strict=True)]
