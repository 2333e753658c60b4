"""Micro-benchmarks of collectives and messages on one rank, while its computing thread carries out a step's operators.

The lane goes through the turns by itself, so that no rank begins a turn as late as its operator ends:

    this thread   aaaaaaabbbbbbcaaaaaaabbbbbbcaaaaaaabb   operators, from the first one again, until the lane is through
    the lane      |--call--|--call--|--call--|--call--|
                                    |-- these count --|

And messages between two ranks that compute nothing, while those compute with which they share their cores.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import partial
from typing import Any, Final

import torch
import torch.distributed as dist

from partita.probes.extra_lane import Call, ExtraLane
from partita.probes.link_timing import CHAINED, started
from partita.probes.sums import summing
from partita.program.space import Kind
from partita.transport.processes import Processes
from partita.transport.transport import Steps
from partita.units import Bytes, Seconds
from partita.wire.schedule import even_edges

SMALLEST: Final[Bytes] = 4  # waits as long as a larger one, which is many times as long as it takes
TURNS: Final = ((2**16, 48), (2**20, 12))  # up to which size how many; 6 of larger ones
AHEAD: Final = 2  # turns that do not count


def overlapped_seconds(
    largest: Bytes, kinds: Collection[str], computing: Iterator[Any], lane: ExtraLane
) -> dict[str, list[tuple[Bytes, Seconds]]]:
    """(bytes, wall seconds) up to the `largest` size of an all-reduce among all ranks, of a gather if that is among the
    `kinds`, and of a message between two neighbours, means, while each rank goes on `computing`; and of a message
    between the first two while only the "others" do."""
    rank, group = dist.get_rank(), tuple(range(dist.get_world_size()))
    transport, mate = summing(), rank ^ 1
    asked = [kind for kind in (Kind.ALL_REDUCE, Kind.ALL_GATHER) if kind in kinds]
    found: dict[str, list[tuple[Bytes, Seconds]]] = {name: [] for name in (*asked, "message", "others")}
    sizes = (SMALLEST, *(size for size in CHAINED if size <= largest))
    for size in sizes:
        tensor = torch.zeros(max(size // 4, 1))
        edges = even_edges(len(tensor), len(group))
        turns = next((many for most, many in TURNS if size <= most), 6)
        for kind in asked:
            call = partial(started, transport, kind, tensor, group, edges)
            dist.barrier()
            found[kind].append((size, beside(lane, call, turns, computing)))
        dist.barrier()  # also of the last one of an odd number of ranks, which has no neighbour
        if mate < len(group):
            there_and_back = partial(exchanged, transport, tensor, mate, rank < mate)
            found["message"].append((size, beside(lane, there_and_back, turns, computing) / 2))
        if len(group) > 2:
            dist.barrier()
            found["others"] += [(size, seconds) for seconds in beside_others(lane, tensor, turns, computing)]
    return found


def beside_others(lane: ExtraLane, tensor: torch.Tensor, turns: int, computing: Iterator[Any]) -> list[Seconds]:
    """Seconds of a message between the first two ranks, a mean of so many turns there and back, while the others go on
    `computing` until the first one tells them; on those two alone."""
    rank, others, transport, told = dist.get_rank(), range(2, dist.get_world_size()), summing(), torch.zeros(1)
    if rank in others:
        lane.begin(partial(transport.receive, told, 0, "probe", 0))
        while lane.busy:
            next(computing)
        return []
    found = beside(lane, partial(exchanged, transport, tensor, 1 - rank, rank == 0), turns, resting(lane)) / 2
    for other in others if rank == 0 else ():
        lane.carry_out(partial(transport.send, told, other, "probe", 0))
    return [found]


def beside(lane: ExtraLane, call: Call, turns: int, computing: Iterator[Any]) -> Seconds:
    """Seconds of `call`, a mean of so many turns, in a lane while this thread goes on `computing`."""
    for _ in range(AHEAD + turns):
        lane.begin(call)
    while lane.busy:
        next(computing)
    ends = [span.end for span in lane.rank.spans[-turns - 1 :]]
    return (ends[-1] - ends[0]) / turns


def resting(lane: ExtraLane) -> Iterator[None]:
    """Who computes nothing waits for its lane."""
    while True:
        lane.wait()
        yield


def exchanged(transport: Processes, tensor: torch.Tensor, mate: int, first: bool) -> Steps:
    """A message to another rank and one back, or, not `first`, the other way round."""
    for sends in (first, not first):
        yield transport.send(tensor, mate, "probe", 0) if sends else transport.receive(tensor, mate, "probe", 0)
