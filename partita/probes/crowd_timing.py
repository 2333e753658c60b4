"""Micro-benchmarks of messages between a rank and several others at once.

A port that many use at once lets less through than one flow gets: queues overflow, and whoever waits for a peer that is
held up leaves its own port idle.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from statistics import fmean, median
from typing import Final

import torch
import torch.distributed as dist

from partita.probes.extra_lane import ExtraLane
from partita.probes.timing import AHEAD, computed
from partita.transport.clocks import clock_offset
from partita.transport.processes import Processes
from partita.transport.transport import Steps
from partita.units import Bytes, Seconds

Congested = tuple[Bytes, int, Seconds]
CONGESTED: Final[tuple[Bytes, ...]] = (2**18, 2**20, 2**22)  # where a server's queues fill
CONGESTED_TURNS: Final = 3  # of each size, of which the median counts
QUEUED_TURNS: Final = 17  # the first does not count


def congested_seconds(peers: Sequence[int], many: int, largest: Bytes) -> list[Congested]:
    """(bytes of a message, messages each way, seconds for all) while each rank hears from its `peers` and speaks to
    them at once, of which the busiest has so `many`; no less than three times the `largest` size each way. All are
    posted at once, as a worker posts what is ready."""
    transport, found = Processes(dist.get_rank()), []
    with ExtraLane() as lane:
        for size in (size for size in CONGESTED if size <= largest):
            each = -(-3 * largest // (size * many))
            walls = []
            for _ in range(CONGESTED_TURNS):
                dist.barrier()
                begun = time.perf_counter()
                lane.carry_out(partial(swapped, transport, peers, each, size))
                walls.append(time.perf_counter() - begun)
            found.append((size, each * many, median(walls)))
        return found


def swapped(transport: Processes, peers: Sequence[int], many: int, size: Bytes) -> Steps:
    """So many messages to each peer, and from it."""
    taken, given = torch.zeros(size // 4), torch.zeros(size // 4)
    going = [transport.receive(taken, peer, "probe", 0) for peer in peers for _ in range(many)]
    going += [transport.send(given, peer, "probe", 0) for _ in range(many) for peer in peers]
    yield from going


def crowds_of(rank: int, world: int) -> tuple[tuple[int, list[int]], ...]:
    """(how many others each rank has messages with at once, these others of `rank`), for the two neighbours in a ring
    and for all; none among two ranks."""
    everyone = [other for other in range(world) if other != rank]
    beside = [other for other in everyone if (other - rank) % world in (1, world - 1)]
    return tuple((len(each), each) for each in ([beside, everyone] if world > 3 else [everyone]) if world > 2)


def queued_seconds(largest: Bytes) -> list[tuple[Bytes, list[Seconds]]]:
    """(bytes of a message, seconds until the first, the second, ... has come), while the last rank posts one to each
    other rank at once, as a server does: means over turns, in the order in which they are posted. Nothing among two."""
    rank, world = dist.get_rank(), dist.get_world_size()
    server, offset, transport = world - 1, clock_offset(rank), Processes(rank)
    found: list[tuple[Bytes, list[Seconds]]] = []
    with ExtraLane() as lane:
        for size in (size for size in CONGESTED if size <= largest and world > 2):
            taken, turns = torch.zeros(size // 4), list[list[Seconds]]()
            for _ in range(QUEUED_TURNS):
                dist.barrier()
                moments = torch.zeros(world, dtype=torch.float64)
                if rank == server:
                    computed(AHEAD)  # so that others wait for theirs
                    moments[rank] = time.perf_counter() + offset
                    lane.carry_out(partial(handed_out, transport, taken, range(server)))
                else:
                    lane.carry_out(partial(transport.receive, taken, server, "probe", 0))
                    moments[rank] = time.perf_counter() + offset
                dist.all_reduce(moments)
                turns.append((moments[:server] - moments[server]).tolist())
            found.append((size, [fmean(column) for column in zip(*turns[1:], strict=True)]))
    return found


def handed_out(transport: Processes, tensor: torch.Tensor, peers: Sequence[int]) -> Steps:
    """A message to each of the peers, posted one after the other."""
    yield from [transport.send(tensor, peer, "probe", 0) for peer in peers]
