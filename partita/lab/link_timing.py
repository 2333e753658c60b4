"""Micro-benchmarks of messages and collectives on one rank, while all ranks take part.

In a step ranks come to a collective from computing, or compute beside it; neither is like a collective among ranks that
rest. gloo's thread spins while a peer's message waits for a receive that is not posted yet, which takes twice the
core-seconds where ranks have rested; and a message beside computing waits for a time slice.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterable
from functools import partial
from itertools import pairwise, product
from statistics import fmean, median
from typing import Any, Final

import torch
import torch.distributed as dist

from partita.lab.timing import Executor
from partita.program.instruction import Kind
from partita.runtime.device import CPU
from partita.runtime.processes import Processes
from partita.units import Bytes, Seconds

PATIENCE: Final[Seconds] = 60.0
AHEAD: Final[Seconds] = 1e-3  # of computing before each message and collective
OVERLAPPED: Final[tuple[Bytes, ...]] = (2**16, 2**18, 2**20)  # beside computing
CONGESTED: Final[tuple[Bytes, ...]] = (2**18, 2**20, 2**22)  # where a server's queues fill


def wire_seconds(
    kind: Kind, sizes: tuple[Bytes, ...], largest: int = 6, device: str = CPU
) -> list[tuple[Bytes, Seconds, Seconds, Seconds]]:
    """(bytes, wall seconds of a round, this process's core-seconds in it, those of its computing) of a collective among
    all ranks, means: a round is `AHEAD` of computing and the collective, which one thread hands to another and waits
    for that one to say that it is done, as in a worker.

    gloo's thread now and then spins through a time slice, so small sizes are repeated more often than the `largest`; a
    step meets the mean, not the median. The slowest round is left out, which may have waited for other work on the
    machine.
    """
    rank, group, found = dist.get_rank(), tuple(range(dist.get_world_size())), []
    transport, executor = Processes(rank, {("probe", group): dist.group.WORLD}), Executor()
    factor = torch.randn(128, 128)
    for size in sizes:
        elements = max(size // 4, 1)
        edges = tuple(elements * k // len(group) for k in range(len(group) + 1))
        tensor = torch.zeros(elements, device=device)
        repeats = min(max(largest * sizes[-1] // size, largest), 6 * largest)
        once = partial(carried_out, transport, kind, tensor, group, edges)
        ends: list[tuple[Seconds, Seconds, Seconds]] = []
        for _ in range(repeats + 3):
            ahead = computed(factor, AHEAD)
            executor.carry_out(once)
            ends.append((time.perf_counter(), time.process_time(), ahead))
        rounds = [
            (end - start, after - before, ahead) for (start, before, _), (end, after, ahead) in pairwise(ends[2:])
        ]
        wall, core, ahead = (fmean(column) for column in zip(*sorted(rounds)[:-1], strict=True))
        found.append((size, wall, core, ahead))
    return found


def overlapped_seconds(largest: Bytes, repeats: int = 12) -> dict[str, list[tuple[Bytes, Seconds]]]:
    """(bytes, wall seconds) up to the `largest` size of an all-reduce among all ranks, and of a message between two
    neighbours, means, while each rank multiplies matrices until its own is done."""
    rank, group = dist.get_rank(), tuple(range(dist.get_world_size()))
    transport, executor, mate = Processes(rank, {("probe", group): dist.group.WORLD}), Executor(), rank ^ 1
    found: dict[str, list[tuple[Bytes, Seconds]]] = {"collective": [], "message": []}
    for size in (*(size for size in OVERLAPPED if size < largest), largest):
        tensor = torch.zeros(max(size // 4, 1))
        edges = tuple(len(tensor) * k // len(group) for k in range(len(group) + 1))
        turns = repeats if size < largest else repeats // 2
        summed = partial(carried_out, transport, Kind.ALL_REDUCE, tensor, group, edges)
        found["collective"].append((size, beside_computing(executor, summed, turns)))
        if mate < len(group):
            there_and_back = partial(exchanged, tensor, mate, rank < mate)
            found["message"].append((size, beside_computing(executor, there_and_back, turns) / 2))
    return found


def congested_seconds(largest: Bytes, turns: int = 2) -> list[tuple[Bytes, int, Seconds]]:
    """(bytes of a message, messages each way, seconds for all) while the last rank hears from all others and speaks to
    them at once, as a server does; no less than four times the `largest` size each way. None among two ranks."""
    rank, world = dist.get_rank(), dist.get_world_size()
    server, found = world - 1, []
    ways = tuple(product(range(server) if rank == server else (server,), (True, False)))
    for size in (size for size in CONGESTED if size <= largest and world > 2):
        many = -(-4 * largest // (size * server))
        walls = []
        for _ in range(turns):
            dist.barrier()
            begun = time.perf_counter()
            at_once(partial(streamed, size, many, *way) for way in ways)
            walls.append(time.perf_counter() - begun)
        found.append((size, many * server, min(walls)))
    return found


def queued_seconds(largest: Bytes, turns: int = 7) -> list[tuple[Bytes, list[Seconds]]]:
    """(bytes of a message, seconds until the first, the second, ... has come), medians, while the last rank sends one
    to each other rank at once; nothing on other ranks, and among two."""
    rank, world = dist.get_rank(), dist.get_world_size()
    server, found = world - 1, []
    for size in (size for size in CONGESTED if size <= largest and world > 2):
        ends: list[list[Seconds]] = []
        for _ in range(turns):
            dist.barrier()
            ends.append([])
            if rank == server:
                begun = time.perf_counter()
                at_once(partial(delivered, size, peer, begun, ends[-1]) for peer in range(server))
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


def at_once(calls: Iterable[Callable[[], None]]) -> None:
    """All of them, each in a thread of its own, to the end of the last."""
    lanes = [threading.Thread(target=call) for call in calls]
    for lane in lanes:
        lane.start()
    for lane in lanes:
        lane.join()


def streamed(size: Bytes, many: int, peer: int, sends: bool) -> None:
    """Messages to a peer, or from it, one after the other."""
    tensor = torch.zeros(size // 4)
    for _ in range(many):
        (dist.send if sends else dist.recv)(tensor, peer)


def beside_computing(executor: Executor, call: Callable[[], None], turns: int) -> Seconds:
    """Seconds of `call`, a mean, in another thread while this one multiplies matrices."""
    factor, ends = torch.randn(128, 128), []
    for _ in range(turns + 2):
        executor.begin(call)
        while executor.busy:
            torch.mm(factor, factor)
        ends.append(time.perf_counter())
    return (ends[-1] - ends[1]) / turns


def exchanged(tensor: torch.Tensor, mate: int, first: bool) -> None:
    """A message to another rank and one back, or, not `first`, the other way round."""
    for sends in (first, not first):
        (dist.send if sends else dist.recv)(tensor, mate)


def computed(factor: torch.Tensor, least: Seconds) -> Seconds:
    """Multiplies matrices for at least so many core-seconds of this thread; returns how many they were."""
    begun = time.thread_time()
    while (spent := time.thread_time() - begun) < least:
        torch.mm(factor, factor)
    return spent


def carried_out(
    transport: Processes, kind: Kind, tensor: torch.Tensor, group: tuple[int, ...], edges: tuple[int, ...]
) -> None:
    """A collective from its start to its end."""
    begun = transport.collective(kind, tensor, group, "probe", kind, 0, edges)
    for pending in begun if isinstance(begun, Generator) else (begun,):
        pending.block(PATIENCE)


def message_seconds(rank: int, sizes: tuple[Bytes, ...], repeats: int = 12) -> list[tuple[Bytes, Seconds, Seconds]]:
    """(bytes, wall seconds, this process's core-seconds) of messages from rank 0 to rank 1, medians, handed to another
    thread as those of a worker are, behind computing; nothing on other ranks."""
    found, executor, factor = [], Executor(), torch.randn(128, 128)
    for size in sizes:
        tensor = torch.zeros(max(size // 4, 1))
        call = (partial(dist.send, tensor, 1), partial(dist.recv, tensor, 0), int)[min(rank, 2)]
        walls, cores = [], []
        for _ in range(repeats + 1):
            dist.barrier()
            computed(factor, AHEAD if rank < 2 else 0.0)
            wall, core = time.perf_counter(), time.process_time()
            executor.carry_out(call)
            walls.append(time.perf_counter() - wall)
            cores.append(time.process_time() - core)
        found.append((size, median(walls[1:]), median(cores[1:])))
    return found


def rank_wires(
    rank: int, world: int, sizes: tuple[Bytes, ...], kinds: Iterable[str], device: str = CPU
) -> dict[str, Any]:
    """Curves of the collectives in `kinds` and of messages from rank 0 to rank 1."""
    if world == 1:
        return {kind: [] for kind in (*kinds, "message")}
    found: dict[str, Any] = {kind: wire_seconds(Kind(kind), sizes, device=device) for kind in kinds}
    found["overlapped"] = overlapped_seconds(sizes[-1]) if device == CPU else {}
    found["congested"] = congested_seconds(sizes[-1]) if device == CPU else []
    found["queued"] = queued_seconds(sizes[-1]) if device == CPU else []
    return found | {"message": message_seconds(rank, sizes)}
