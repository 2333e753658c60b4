"""A plan's training in one process, and the serial training that it has to equal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from partita.cluster.cluster import Cluster
from partita.graph.graph import Graph
from partita.lowering.lower import last_program
from partita.oracles.half_precision import half_precision
from partita.oracles.reference import fresh, reference
from partita.oracles.replay import replayed
from partita.oracles.replicas import ReplicaTraining
from partita.plan.plan import Plan
from partita.program.ledger import Merge
from partita.program.program import Program
from partita.runs.assembly import train_in_process
from partita.runtime.leg import Leg, legs
from partita.runtime.state import State
from partita.runtime.workload import Workload
from partita.task import Task
from partita.tracing.draws import sample_dims
from partita.tracing.kept import put_back


@dataclass(frozen=True)
class Trial:
    """A plan's training in one precision, and the serial training that it has to equal."""

    work: Workload
    plan: Plan
    cluster: Cluster
    steps: int
    order: int

    @cached_property
    def legs(self) -> Sequence[Leg]:
        """What is trained under which Program, one after the other."""
        return legs(self.work.graph, self.plan, self.cluster, self.steps)

    @cached_property
    def program(self) -> Program:
        """The Program of the plan's last phase."""
        return last_program(self.work.graph, self.plan, self.cluster)

    @cached_property
    def dims(self) -> Mapping[int, int]:
        """The `sample_dims` of the step."""
        return sample_dims(self.work.graph)

    @property
    def whole(self) -> bool:
        """Whether minibatches may be fed at once, as the step changes no buffers."""
        return not self.work.graph.mutations

    @property
    def short(self) -> str:
        """The dtype of weights that have masters, "" where none have."""
        return next((bucket.master and bucket.dtype for bucket in self.program.trained), "") or ""

    def trained(self, settle: bool = True) -> dict[int, State]:
        """The state of each rank after training under the plan; `settle` is as in `train_in_process`."""
        with put_back(self.work.task):
            return train_in_process(self.work, self.plan, self.cluster, self.steps, order=self.order, settle=settle)[0]

    def serially(
        self, parts: Sequence[Leg], ledger: Sequence[Merge] = (), *, whole: bool, **more: Any
    ) -> dict[int, dict[str, torch.Tensor]]:
        """The weights of each worker that has its own after the same serial training, through these legs."""
        work = self.work
        with put_back(work.task):
            return serial_training(
                work.task, self.cluster, parts, ledger=ledger, whole=whole, graph=work.graph,
                seed=work.seed, precision=work.precision, dims=self.dims, **more,
            )  # fmt: skip


def serial_training(
    task: Task, cluster: Cluster, parts: Sequence[Leg], *, ledger: Sequence[Merge] = (), whole: bool,
    graph: Graph | None = None, **more: Any,
) -> dict[int, dict[str, torch.Tensor]]:  # fmt: skip
    """The serial training that a plan has to equal: `reference`, with replicas that agree as the plans of the legs say;
    with a `ledger`, the replay of it; with masters, training in half precision of the model, or of the captured step
    `graph`."""
    if any(bucket.master for bucket in parts[0].program.buckets):
        return {0: half_precision(task, parts, graph=graph, **more).masters}
    if ledger:
        own = replace(fresh(task, **more), once=parts[0].program.deferred)
        return {0: replayed(own, parts, ledger, whole=whole)}
    return reference(task, parts, whole=whole, replica_training=ReplicaTraining(cluster), **more)
