"""Bus bandwidth of all-reduces by our schedules and by gloo's own, size by size, in a lab.

partita cluster lab lab-4x1g -- python benchmarks/collectives/run.py [BYTES ...]
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from statistics import median

import torch
import torch.distributed as dist

from partita.runtime.hops import by_schedule
from partita.runtime.processes import Processes
from partita.wire.algorithms import all_reduce

SIZES = (2**16, 2**18, 2**20, 2**22, 2**24, 2**26)
NAMES = ("ring", "tree", "doubling", "halving", "blocks", "pairwise")
TURNS = 7


def seconds(run: Callable[[], None]) -> float:
    """The median of some turns that all ranks begin together, of the slowest rank."""
    found = []
    for _ in range(TURNS + 1):
        dist.barrier()
        before = time.perf_counter()
        run()
        spent = torch.tensor([time.perf_counter() - before], dtype=torch.float64)
        dist.all_reduce(spent, dist.ReduceOp.MAX)
        found.append(float(spent))
    return median(found[1:])


def own(transport: Processes, name: str, tensor: torch.Tensor, group: tuple[int, ...]) -> None:
    """An all-reduce by one of our schedules, message by message."""
    for pending in by_schedule(transport, all_reduce(name, len(group)), tensor, group, name, 0):
        pending.block(60.0)


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    group, transport = tuple(range(world)), Processes(rank)
    if rank == 0:
        print(f"{world} ranks; Gbit/s of the bus: 2 (p-1)/p bytes over seconds\n")
        print("| bytes | gloo | " + " | ".join(NAMES) + " | ring / gloo |\n|" + "---|" * (len(NAMES) + 3), flush=True)
    for size in [int(word) for word in sys.argv[1:]] or SIZES:
        tensor = torch.zeros(size // 4)
        moved = 8 * 2 * (world - 1) / world * size / 1e9
        rates = [moved / seconds(lambda t=tensor: dist.all_reduce(t))]
        rates += [moved / seconds(lambda n=name, t=tensor: own(transport, n, t, group)) for name in NAMES]
        if rank == 0:
            cells = " | ".join(f"{one:.3f}" for one in rates)
            print(f"| {size:,} | {cells} | {rates[1] / rates[0]:.3f} |", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    if "RANK" not in os.environ:
        sys.exit("run it in a lab: partita cluster lab lab-4x1g -- python benchmarks/collectives/run.py")
    main()
