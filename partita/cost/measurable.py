"""Whether this machine can stand for a cluster, so that costs can be measured."""

from __future__ import annotations

from partita.cluster.cluster import Cluster
from partita.errors import TaskError
from partita.task import Task, spec_of


def unmeasurable(task: Task | str, cluster: Cluster) -> str:
    """Why costs of a task (what workers load it by, empty: only its graph is known) cannot be measured on a cluster
    here; empty where they can."""
    if not (cluster.emulated or cluster.name.startswith("local:")):
        return f"{cluster.name} stands elsewhere, and only lab clusters and local:N are rehearsed here"
    if any(device.ghost or (cluster.emulated and not device.hosted) for device in cluster.devices):
        return f"{cluster.name} has devices whose computing cannot be timed here"
    if not task or (isinstance(task, str) and task.endswith(".json")):
        return "a graph alone says what is computed, and timing it needs the task"
    try:
        spec_of(task)
    except TaskError as error:
        return str(error)
    return ""
