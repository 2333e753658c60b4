"""Plans on devices with a memory limit at which the kernel kills: whether plans that are said to fit do run.
Used by `benchmarks/limits`; a training has such limits too."""

from __future__ import annotations

from typing import Final

from partita.cluster.cluster import Cluster
from partita.errors import ClusterError, RunError
from partita.graph.graph import Graph
from partita.lab.rehearsal import Rehearsal
from partita.plan.plan import Plan
from partita.units import Bytes

STEPS = 3
PROCESS: Final[Bytes] = 2**28  # of a worker besides tensors: 121 to 258 MiB were measured


def beside(task: str, graph: Graph, cluster: Cluster, plan: Plan) -> Bytes:
    """What a worker takes besides tensors: the most that a device's group had in memory while it ran `plan`, which
    should be one of a task whose tensors are small.

    Raises ClusterError where the lab has no control groups for memory.
    """
    with Rehearsal(task, graph, cluster) as rehearsal:
        rehearsal.measure(plan, steps=STEPS, evaluate=False)
        peak = max(rehearsal.group.lab.memory_peak(rank) for rank in range(cluster.size))
    if not peak:
        raise ClusterError(
            f"{cluster.name} runs without control groups for memory here; limits need them (see `partita doctor`)"
        )
    return peak


def survives(task: str, graph: Graph, cluster: Cluster, plan: Plan, besides: Bytes) -> bool:
    """Whether a plan runs where each device has its memory for tensors, and `besides` for the process."""
    with Rehearsal(task, graph, cluster, beside=besides) as rehearsal:
        try:
            rehearsal.measure(plan, steps=STEPS, evaluate=False)
        except RunError:
            if any(rehearsal.group.lab.killed_for_memory(rank) for rank in range(cluster.size)):
                return False
            raise
    return True
