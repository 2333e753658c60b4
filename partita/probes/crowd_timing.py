"""Micro-benchmarks of messages between a rank and several others at once.

A port that many use at once lets less through than one flow gets: queues overflow, and whoever waits for a peer that is
held up leaves its own port idle.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from statistics import median
from typing import Final

import torch
import torch.distributed as dist

from partita.probes.extra_lane import ExtraLane
from partita.transport.processes import Processes
from partita.transport.transport import Steps
from partita.units import Bytes, Seconds

Congested = tuple[Bytes, int, Seconds]
CONGESTED: Final[tuple[Bytes, ...]] = (2**18, 2**20, 2**22)  # where a server's queues fill
CONGESTED_TURNS: Final = 3  # of each size, of which the median counts
QUEUED_TURNS: Final = 7  # likewise


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
    """(bytes of a message, seconds until the first, the second, ... has come), medians, while the last rank sends one
    to each other rank at once; nothing on other ranks, and among two."""
    rank, world = dist.get_rank(), dist.get_world_size()
    server, found = world - 1, []
    for size in (size for size in CONGESTED if size <= largest and world > 2):
        ends: list[list[Seconds]] = []
        for _ in range(QUEUED_TURNS):
            dist.barrier()
            ends.append([])
            if rank == server:
                begun = time.perf_counter()
                at_once([partial(delivered, size, peer, begun, ends[-1]) for peer in range(server)])
            else:
                dist.recv(torch.zeros(size // 4), server)
                dist.send(torch.zeros(1), server)
        found.append((size, [median(column) for column in zip(*ends, strict=True)]))
    return found if rank == server else []


def delivered(size: Bytes, peer: int, begun: Seconds, ends: list[Seconds]) -> None:
    """A message to a peer and its answer; notes how long after `begun` that came."""
    dist.send(torch.zeros(size // 4), peer)
    dist.recv(torch.zeros(1), peer)
    ends.append(time.perf_counter() - begun)


def at_once(calls: Collection[Callable[[], None]]) -> None:
    """All of them, each in a thread of its own, to the end of the last. Raises what the first that failed raises."""
    with ThreadPoolExecutor(len(calls)) as pool:
        for going in [pool.submit(call) for call in calls]:
            going.result()
