"""Whether the costs of a cluster can be measured on this machine."""

from __future__ import annotations

from typing import Final

from partita.cluster.cluster import Cluster
from partita.errors import OptionError, TaskError
from partita.task import Task, spec_of

SOURCES: Final = ("", "measured", "datasheet")


def check_named(source: str) -> None:
    """Raises OptionError for what is no source of costs."""
    if source not in SOURCES:
        raise OptionError(f"--costs is {source!r}; allowed are {' and '.join(SOURCES[1:])}")


def check_measurable(because: str) -> None:
    """Raises OptionError where costs are to be measured and `because` says why they cannot be."""
    if because:
        raise OptionError(f"costs cannot be measured: {because}; leave --costs measured out")


def unmeasurable(task: Task | str, cluster: Cluster) -> str:
    """Why the costs of `task` on `cluster` cannot be measured on this machine, as part of a sentence; "" if they can.

    `task` is a Task or the text that workers load it by; "" if only its graph is known.
    """
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
