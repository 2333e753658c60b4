"""Micro-benchmarks of operators, copies, updates and links on one rank; no plan and no full step is ever timed.

Times are core-seconds of the calling thread, taken while every device of the cluster is loaded alike: on a device that
may use half a core, a core-second lasts two seconds, whoever else computes. What differs between hosts and minutes is
divided out: every operator is stored relative to a reference kernel that is timed beside it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from statistics import fmean, median
from typing import Any, Final

import torch
import torch.distributed as dist

from partita.graph.batch import substitute
from partita.graph.graph import Graph
from partita.graph.signature import signature
from partita.lab.turns import seconds_in_turn
from partita.program.instruction import Kind
from partita.runtime.feed import Feed
from partita.runtime.processes import Processes
from partita.task import Task
from partita.units import Bytes, Seconds

LEAST: Final[Seconds] = 0.006
FEW: Final = 100
PATIENCE: Final[Seconds] = 60.0


def thread_seconds(run: Callable[[], Any], least: Seconds = LEAST) -> Seconds:
    """Core-seconds of one `run`: the median of five batches of runs that last `least` seconds in all."""
    run()
    before = time.thread_time()
    run()
    once = max(time.thread_time() - before, 1e-7)
    runs = max(1, round(least / 5 / once))
    batches = []
    for _ in range(5 if once < least else 3):
        before = time.thread_time()
        for _ in range(runs):
            run()
        batches.append((time.thread_time() - before) / runs)
    return median(batches)


def unique_operators(graphs: Iterable[Graph]) -> dict[str, tuple[Graph, int]]:
    """One example (graph, index) of each signature among graphs whose sizes are numbers."""
    found: dict[str, tuple[Graph, int]] = {}
    for graph in graphs:
        for i, operator in enumerate(graph.operators):
            found.setdefault(signature(operator, graph), (graph, i))
    return found


def reference_seconds() -> Seconds:
    """The reference kernel that host drift is divided out by: a 192 x 192 matrix product and a pass over 1 MB.

    The least of four, for a process's first calls take up to twice as long."""
    a, b, c = torch.randn(192, 192), torch.randn(192, 192), torch.randn(2**18)

    def kernel() -> None:
        torch.mm(a, b)
        torch.add(c, 1.0)

    return min(thread_seconds(kernel) for _ in range(4))


def touch_seconds(
    run: Callable[[list[torch.Tensor]], Any], sizes: tuple[int, int] = (64, 2**20)
) -> tuple[Seconds, Seconds]:
    """(seconds a tensor, seconds an element) of `run` over a list of tensors: four small ones against one large one."""
    few, one = [torch.randn(sizes[0]) for _ in range(8)], [torch.randn(sizes[1])]
    small = thread_seconds(lambda: run(few))
    large = thread_seconds(lambda: run(one), 0.03)
    element = large / sizes[1]
    return max(small / 8 - element * sizes[0], 1e-7), element


def copies() -> dict[str, tuple[Seconds, Seconds]]:
    """Copying into and adding to a bucket."""
    found = {}
    for name, function in (("copy", torch._foreach_copy_), ("add", torch._foreach_add_)):
        held: dict[int, list[torch.Tensor]] = {}

        def run(tensors: list[torch.Tensor], function: Any = function, held: Any = held) -> None:
            if id(tensors) not in held:
                held[id(tensors)] = [torch.zeros_like(t) for t in tensors]
            function(held[id(tensors)], tensors)

        found[name] = touch_seconds(run)
    return found


def update_seconds(task: Task) -> tuple[Seconds, Seconds]:
    """(seconds a tensor, seconds an element) of the task's optimizer."""
    optimizers: dict[int, torch.optim.Optimizer] = {}

    def run(tensors: list[torch.Tensor]) -> None:
        if id(tensors) not in optimizers:
            for t in tensors:
                t.grad = torch.randn_like(t) * 1e-6
            optimizers[id(tensors)] = task.optimizer(tensors)
        optimizers[id(tensors)].step()

    return touch_seconds(run)


def load_seconds(task: Task, count: int) -> tuple[Seconds, Seconds]:
    """(seconds a batch, seconds a sample) of fetching and collating."""
    feed = Feed(task, 0)
    feed.positions(0, 0, 1)
    few = thread_seconds(lambda: feed.leaves(feed.positions(0, 0, 1), "cpu"))
    many = thread_seconds(lambda: feed.leaves(feed.positions(0, 0, count), "cpu"))
    each = (many - few) / (count - 1) if count > 1 else few
    return max(few - each, 0.0), max(each, 1e-9)


def wire_seconds(kind: Kind, sizes: tuple[Bytes, ...], largest: int = 5) -> list[tuple[Bytes, Seconds, Seconds]]:
    """(bytes, wall seconds, this process's core-seconds) of a collective among all ranks, means.

    gloo's thread now and then spins through a time slice until its peers answer, so small sizes are repeated more often
    than the `largest`; a step meets the mean, not the median.
    """
    rank, group, found = dist.get_rank(), tuple(range(dist.get_world_size())), []
    transport = Processes(rank, {("probe", group): dist.group.WORLD})
    for size in sizes:
        elements = max(size // 4, 1)
        edges = tuple(elements * k // len(group) for k in range(len(group) + 1))
        tensor, repeats = torch.zeros(elements), min(max(largest * sizes[-1] // size, largest), 6 * largest)
        walls, cores = [], []
        for _ in range(repeats + 2):
            dist.barrier()
            wall, core = time.perf_counter(), time.process_time()
            transport.collective(kind, tensor, group, "probe", kind, 0, edges).block(PATIENCE)
            walls.append(time.perf_counter() - wall)
            cores.append(time.process_time() - core)
        found.append((size, fmean(walls[2:]), fmean(cores[2:])))
    return found


def message_seconds(rank: int, sizes: tuple[Bytes, ...], repeats: int = 5) -> list[tuple[Bytes, Seconds, Seconds]]:
    """(bytes, wall seconds, this process's core-seconds) of messages from rank 0 to rank 1; nothing on other ranks."""
    found = []
    for size in sizes:
        tensor = torch.zeros(max(size // 4, 1))
        walls, cores = [], []
        for _ in range(repeats + 1):
            dist.barrier()
            wall, core = time.perf_counter(), time.process_time()
            if rank == 0:
                dist.send(tensor, 1)
            elif rank == 1:
                dist.recv(tensor, 0)
            walls.append(time.perf_counter() - wall)
            cores.append(time.process_time() - core)
        found.append((size, median(walls[1:]), median(cores[1:])))
    return found


def rank_operators(
    graph: Graph,
    batches: Iterable[int],
    known: Iterable[str],
    rank: int,
    world: int,
    tell: Callable[[dict[str, Any]], None],
) -> dict[str, Any]:
    """Signature -> core-seconds of this rank's share of the operators that are not known yet, and the reference
    kernel's. A few operators are timed by every rank: too short a list would stay in the cache."""
    torch.manual_seed(0)
    wanted = unique_operators([substitute(graph, batch) for batch in batches])
    known = set(known)
    names = [name for name in wanted if name not in known]
    mine = names if len(names) < FEW else names[rank::world]
    reference = reference_seconds()
    with torch.no_grad():
        found = seconds_in_turn([(n, *wanted[n]) for n in mine], lambda n: tell({"operators": n, "of": len(mine)}))
    return {"operators": found, "reference": min(reference, reference_seconds())}


def rank_touches(task: Task, count: int) -> dict[str, Any]:
    """Costs of passing through tensors and of loading `count` samples."""
    torch.manual_seed(0)
    with torch.no_grad():
        return {**copies(), "update": update_seconds(task), "load": load_seconds(task, count)}


def rank_wires(rank: int, world: int, sizes: tuple[Bytes, ...]) -> dict[str, Any]:
    """Curves of all-reduces, of their two halves, and of messages from rank 0 to rank 1."""
    if world == 1:
        return {"reduce": [], "scatter": [], "gather": [], "message": []}
    kinds = {"reduce": Kind.ALL_REDUCE, "scatter": Kind.REDUCE_SCATTER, "gather": Kind.ALL_GATHER}
    return {name: wire_seconds(kind, sizes) for name, kind in kinds.items()} | {"message": message_seconds(rank, sizes)}
