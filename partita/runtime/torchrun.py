"""One rank of a run that somebody else launched: torchrun, a cluster's scheduler, the lab's COMMAND."""

from __future__ import annotations

import os

import torch.distributed as dist

from partita.cluster.cluster import Cluster
from partita.errors import OptionError
from partita.graph.graph import Graph
from partita.lowering.lower import lower
from partita.plan.plan import Plan
from partita.runtime.session import Order, Session, join_world
from partita.runtime.take import Take, gather_reports, take_of
from partita.task import Task
from partita.units import Seconds


def place_here(cluster: Cluster) -> tuple[int, int]:
    """(rank, world size) from the environment. Raises OptionError where the variables contradict each other."""
    try:
        rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    except (KeyError, ValueError):
        raise OptionError("RANK is set and WORLD_SIZE is not a number; start with torchrun, or set both") from None
    if not 0 <= rank < world:
        raise OptionError(f"RANK is {rank} and WORLD_SIZE {world}; ranks go from 0 to WORLD_SIZE - 1")
    if world != cluster.size:
        raise OptionError(f"WORLD_SIZE is {world} and {cluster.name} has {cluster.size} devices; make them equal")
    return rank, world


def train_rank(
    task: Task,
    graph: Graph,
    plan: Plan,
    cluster: Cluster,
    *,
    steps: int,
    seed: int,
    init: str,
    out: str,
    keyed: bool,
    timeout: Seconds,
) -> Take | None:
    """Train as this process's rank; the result on rank 0, None on the others."""
    rank, world = place_here(cluster)
    if world > 1:
        join_world(rank, world, timeout)
    session = Session(task, graph, cluster, seed, rank, world, timeout)
    session.open(init)
    report = session.run(Order(plan, steps, out=out, keyed=keyed), lambda event: None)
    reports = gather_reports(report, rank, world) if world > 1 else [report]
    if world > 1:
        dist.destroy_process_group()
    program = lower(graph, plan, cluster)[-1].program
    return take_of(program, reports, min(3, steps - 1)) if rank == 0 else None
