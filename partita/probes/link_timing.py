"""Micro-benchmarks of messages and collectives on one rank, while all ranks take part.

In a step ranks come to a collective from computing, which is not like a collective among ranks that rest: gloo's thread
spins while a peer's message waits for a receive that is not posted yet, which takes twice the core-seconds where ranks
have rested. What goes on beside computing is `overlap_timing`.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from functools import partial
from itertools import pairwise
from statistics import fmean, median
from typing import Any, Final

import torch
import torch.distributed as dist

from partita.probes.crowd_timing import Congested, congested_seconds, crowds_of, queued_seconds
from partita.probes.extra_lane import MESSAGE_TIMEOUT, Call, ExtraLane
from partita.probes.sums import LANE, summing
from partita.probes.timing import AHEAD, computed
from partita.probes.worker_timing import posted_seconds, value_seconds
from partita.program.space import Kind
from partita.runtime.device import CPU
from partita.transport.clocks import clock_offset
from partita.transport.processes import Processes
from partita.transport.transport import Pending, Steps
from partita.units import Bytes, Seconds
from partita.wire.schedule import even_edges

CHAINED: Final[tuple[Bytes, ...]] = (2**16, 2**18, 2**20, 2**22)
FEWEST, MOST = 5, 60  # rounds of a collective: of the largest size, and of small ones
AWAKE: Final = 20  # rounds of a chain of a few hops
MESSAGE_ROUNDS, CHAIN_ROUNDS, LONE_ROUNDS = 12, 8, 40
CHAIN: Final = 8  # all-reduces right behind one another
FEW: Final = 3  # hops of a chain that begins asleep
CHAINED_SUMS: Final[Bytes] = 2**18  # larger ones cost the same in a row


def wire_seconds(
    kind: Kind, sizes: tuple[Bytes, ...], device: str = CPU, many: int = 1
) -> list[tuple[Bytes, Seconds, Seconds, Seconds]]:
    """(bytes, wall seconds, this process's core-seconds, those of computing in both) of so `many` collectives among all
    ranks, in a lane and behind `AHEAD` of computing, means of rounds in a row, computing included.

    gloo's thread now and then spins through a time slice, so small sizes are repeated more often than large ones; a
    step meets the mean, not the median. That quotas run out at different moments is part of what ranks wait for each
    other. Among ranks that rest or do nothing else, that thread spins twice as long, and longer also where one small
    collective follows the other.
    """
    group, found, transport = tuple(range(dist.get_world_size())), [], summing()
    with ExtraLane() as lane:
        for size in sizes:
            elements = max(size // 4, 1)
            edges = even_edges(elements, len(group))
            repeats = min(max(FEWEST * sizes[-1] // size, FEWEST), MOST if many == 1 else MOST // 2) + 2
            call = partial(started, transport, kind, torch.zeros(elements, device=device), group, edges)
            found.append((size, *_in_a_row(lane, [call] * many, repeats)))
        return found


def _in_a_row(lane: ExtraLane, calls: Sequence[Call], repeats: int) -> tuple[Seconds, Seconds, Seconds]:
    """Wall seconds and core-seconds of rounds of computing and calls, and core-seconds of computing, means."""
    ends: list[tuple[Seconds, Seconds, Seconds]] = []
    for _ in range(repeats + 1):
        ahead = computed(AHEAD)
        for call in calls:
            lane.begin(call)
        lane.wait()
        ends.append((time.perf_counter(), time.process_time(), ahead))
    rounds = [(end - start, after - before, ahead) for (start, before, _), (end, after, ahead) in pairwise(ends[2:])]
    wall, core, ahead = (fmean(column) for column in zip(*rounds, strict=True))
    return wall, core, ahead


def round_about(transport: Processes, many: int, source: int, target: int, size: Bytes) -> Steps:
    """Messages from one rank and to another, at once."""
    taken, given = torch.zeros(size // 4), torch.zeros(size // 4)
    for _ in range(many):
        coming = transport.receive(taken, source, "probe", 0)
        yield transport.send(given, target, "probe", 0)
        yield coming


def started(
    transport: Processes, kind: Kind, tensor: torch.Tensor, group: tuple[int, ...], edges: tuple[int, ...]
) -> Pending | Steps:
    """A collective, started."""
    return transport.collective(kind, tensor, group, LANE, kind, 0, edges)


def message_seconds(rank: int, sizes: tuple[Bytes, ...]) -> list[tuple[Bytes, Seconds]]:
    """(bytes, this process's core-seconds) of messages from rank 0, where the computing thread starts them, to a lane
    of rank 1, medians, behind computing; other ranks' mean nothing."""
    found, transport = [], Processes(rank)
    with ExtraLane() as lane:
        for size in sizes:
            tensor = torch.zeros(max(size // 4, 1))
            cores = []
            for _ in range(MESSAGE_ROUNDS + 1):
                dist.barrier()
                computed(AHEAD if rank < 2 else 0.0)
                core = time.process_time()
                if rank == 0:
                    going = transport.send(tensor, 1, "probe", 0)
                    lane.carry_out(lambda going=going: going)  # type: ignore[misc]
                elif rank == 1:
                    lane.carry_out(partial(transport.receive, tensor, 0, "probe", 0))
                cores.append(time.process_time() - core)
            found.append((size, median(cores[1:])))
        return found


def hop_seconds(largest: Bytes) -> list[tuple[Bytes, Seconds, Seconds, Seconds]]:
    """(bytes, seconds, those in the quickest chain, this process's core-seconds) of each step of a chain in which every
    rank sends a message to the next one and has one from the one before: means; the slowest chain is left out, which
    may have waited for other work on the machine."""
    rank, world = dist.get_rank(), dist.get_world_size()
    found: list[tuple[Bytes, Seconds, Seconds, Seconds]] = []
    with ExtraLane() as lane:
        for size in (4, *(size for size in CHAINED if size < largest)):
            many, walls, cores = 24 if size <= CHAINED[0] else 6, [], []
            chain = partial(round_about, Processes(rank), many, (rank - 1) % world, (rank + 1) % world, size)
            for _ in range(CHAIN_ROUNDS + 1):
                dist.barrier()
                begun, core = time.perf_counter(), time.process_time()
                lane.carry_out(chain)
                walls.append((time.perf_counter() - begun) / many)
                cores.append((time.process_time() - core) / many)
            found.append((size, fmean(sorted(walls[1:])[:-1]), min(walls[1:]), median(cores[1:])))
        return found


def waking_seconds() -> Seconds:
    """This process's core-seconds of a chain of a FEW hops, of all ranks and a number each, in a lane and behind
    computing, a mean: a collective that goes by hops finds lanes and gloo's threads asleep."""
    rank, world = dist.get_rank(), dist.get_world_size()
    chain = partial(round_about, Processes(rank), FEW, (rank - 1) % world, (rank + 1) % world, 4)
    dist.barrier()
    with ExtraLane() as lane:
        _, core, ahead = _in_a_row(lane, [chain], AWAKE)
        return core - ahead


def lone_seconds(rank: int, lane: ExtraLane | None = None) -> tuple[Seconds, Seconds]:
    """(seconds from the end of computing on rank 0 until a number sent there has come to rank 1, this process's
    core-seconds of it): medians; 0 where they are not known. Rank 1 waits for it in a `lane`, or in the thread that
    computes (None), which is all that does anything there: how values come."""
    offset, transport, walls, cores = clock_offset(rank), Processes(rank), [0.0], list[Seconds]()
    moment = torch.zeros(1, dtype=torch.float64)
    for _ in range(LONE_ROUNDS + 1):
        dist.barrier()
        begun, spent = time.process_time(), 0.0
        if rank == 0:
            spent = computed(AHEAD)
            moment[0] = time.perf_counter() + offset
            transport.send(moment, 1, "probe", 0).block(MESSAGE_TIMEOUT)
        elif rank == 1:
            if lane:
                lane.carry_out(partial(transport.receive, moment, 0, "probe", 0))
            else:
                transport.receive(moment, 0, "probe", 0).block(MESSAGE_TIMEOUT)
            walls.append(time.perf_counter() + offset - float(moment))
        cores.append(time.process_time() - begun - spent)
    return median(walls[-LONE_ROUNDS:]), median(cores[1:])


def rank_wires(rank: int, world: int, sizes: tuple[Bytes, ...], kinds: Collection[str], device: str) -> dict[str, Any]:
    """Curves of the collectives in `kinds`, and what small messages and messages in crowds cost, once before all else
    and once behind it; and curves of messages from rank 0 to rank 1."""
    if world == 1:
        return {kind: [] for kind in (*kinds, "message")}
    short, chained = tuple(size for size in sizes if size <= CHAINED_SUMS), partial(wire_seconds, Kind.ALL_REDUCE)
    found: dict[str, Any] = {kind: wire_seconds(Kind(kind), sizes, device=device) for kind in kinds}
    found["row"] = chained(short, device=device, many=CHAIN)
    posted, crowded = posted_seconds(rank, world, sizes[-1]), _crowds(rank, world, sizes[-1], device)
    found["queued"] = queued_seconds(sizes[-1]) if device == CPU else []
    found |= {
        "message": message_seconds(rank, sizes),
        "value": lone_seconds(rank),
        "handed": value_seconds(rank, world),
    }
    with ExtraLane() as lane:
        found["lone"] = lone_seconds(rank, lane)
    found["crowds"] = [crowded, _crowds(rank, world, sizes[-1], device)]
    found |= {"posted": [posted, posted_seconds(rank, world, sizes[-1])], "hops": hop_seconds(sizes[-1])}
    found["row"] += chained(short, device=device, many=CHAIN)
    found["waking"] = waking_seconds()
    return found | {kind: found[kind] + wire_seconds(Kind(kind), sizes, device=device) for kind in kinds}


def _crowds(rank: int, world: int, largest: Bytes, device: str) -> list[tuple[int, list[Congested]]]:
    """(0, `congested_seconds` of a server, the last rank, and all others), and by the number of peers those of ranks
    among which each has so many; nothing on a card, and among two."""
    served = range(world - 1) if rank == world - 1 else (world - 1,)
    crowds = crowds_of(rank, world) if device == CPU else ()
    rows = [(0, congested_seconds(served, world - 1, largest))] if crowds else []
    return rows + [(many, congested_seconds(peers, many, largest)) for many, peers in crowds]
