"""What ranks compute, whichever plan they follow: the task and its captured step, from which weights, in which
precision, and on what."""

from __future__ import annotations

from dataclasses import dataclass

from partita.graph.graph import Graph
from partita.runtime.device import CPU
from partita.task import Task


@dataclass(frozen=True, slots=True)
class Workload:
    """A task, and the `graph` of its step.

    `seed` is that of its first weights and samples. It computes in `precision`, the task's where none is given, and on
    `device`. `keyed`: random numbers do not depend on the plan.
    """

    task: Task
    graph: Graph
    seed: int = 0
    precision: str = ""
    keyed: bool = False
    device: str = CPU
