"""A training that this process launches: it claims the run's directory, starts workers and stores the result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from partita.cluster.cluster import Cluster
from partita.graph.graph import Graph
from partita.lab.rehearsal import Rehearsal, Tell
from partita.lowering.lower import lower
from partita.plan.plan import Plan
from partita.runtime.checkpoint import SavedCheckpoint, SavePolicy
from partita.runtime.directory import Finished, opened, write_result
from partita.runtime.manifest import identity_of
from partita.runtime.mean import divides, unlike_its_parts
from partita.runtime.result import RunResult
from partita.task import Task
from partita.units import Seconds


def train_on(
    task: Task, graph: Graph, plan: Plan, cluster: Cluster, *, steps: int, seed: int, init: str, keep: SavePolicy,
    resume: bool, keyed: bool, timeout: Seconds, tell: Tell, note: Tell, begin: Callable[[], None],
) -> RunResult:  # fmt: skip
    """Train `task`, which workers load as well, on the devices of `cluster`, up to step `steps`.

    `tell` is called with progress, `note` with sentences that the user must see, `begin` once the directory is this
    run's. Raises RunStopped after a signal.
    """
    with opened(keep, resume, graph, plan, cluster, seed=seed, steps=steps, tell=note, begin=begin) as start:
        if isinstance(start, Finished):
            return start.result
        path, since = (str(start.path), start.manifest.step) if isinstance(start, SavedCheckpoint) else ("", 0)
        order: dict[str, Any] = {"seed": seed, "init": init, "timeout": timeout, "tell": tell}
        if divides(lower(graph, plan, cluster)[-1].program) and (unlike := unlike_its_parts(task, graph.batch, seed)):
            note(unlike)
        with Rehearsal(task, graph, cluster, **order) as rehearsal:
            result = rehearsal.train(plan, steps=steps, keep=keep, keyed=keyed, resume=path, since=since, note=note)
        if keep.out:
            write_result(keep.out, Finished(plan, steps, result, identity_of(graph, seed, plan.update)))
        return result
