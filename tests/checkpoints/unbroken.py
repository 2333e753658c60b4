"""Whether a run that goes on from its checkpoints ends as one that was never broken off."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from partita.checkpoints.checkpoint import SavePolicy
from partita.checkpoints.restore import open_checkpoint
from partita.cluster.cluster import Cluster
from partita.graph.graph import Graph
from partita.plan.plan import Plan
from partita.runs.assembly import train_in_process
from partita.runtime.workload import Workload
from partita.task import Task


def check_unbroken(
    task: Task, graph: Graph, plan: Plan, machines: Cluster, after: Sequence[int], out: Path
) -> None:  # fmt: skip
    """Nine steps with a checkpoint every two of them, and again from those of the steps `after`: the weights of every
    rank and the losses are the same bits."""

    def trained(**more: Any) -> list[bytes]:
        states, losses = train_in_process(
            Workload(task, graph, keyed=True, precision="fp64"), plan, machines, 9, **more
        )
        return [s.parameter[b].numpy().tobytes() for s in states.values() for b in s.parameter] + [str(losses).encode()]

    unbroken = trained(keep=SavePolicy(str(out), 2, 9))
    for step in after:
        assert trained(saved=open_checkpoint(out / f"checkpoints/step-{step}")) == unbroken
