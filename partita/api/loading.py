"""Loading tasks, clusters and graphs, and capturing a training step."""

from __future__ import annotations

from os.path import isfile
from pathlib import Path

from partita.api.checking import check_task
from partita.cluster.cluster import Cluster
from partita.cluster.text import load_cluster
from partita.cost.measurable import unmeasurable
from partita.errors import TaskError
from partita.graph.graph import Graph
from partita.graph.text import read_graph, write_graph
from partita.report.files import check_ending
from partita.task import Task, load_task
from partita.telling import Tell, quiet
from partita.zoo.names import NAMES, check_name


def load(spec: str) -> Task:
    """The Task of `file.py:function`, `package.module:function` or a built-in name."""
    if ":" in spec:
        return load_task(spec)
    if spec not in NAMES:
        check_no_file(spec)
    check_name(spec)
    from partita.zoo.tasks import built_in

    return load_task(spec, built_in)


def task_of(spec: str) -> Task | str:
    """The Task of a text, made once for whoever needs it; the text itself where it names a saved graph."""
    return spec if spec.endswith(".json") else load(spec)


def timed_task(task: Task | str, cluster: Cluster) -> Task | str:
    """What several measurements of costs on this cluster share: the Task, made once; what was given, where there is
    nothing to measure."""
    return task if isinstance(task, Task) or unmeasurable(task, cluster) else task_of(task)


def check_no_file(spec: str) -> None:
    """Raises TaskError for a file where a task is named by a function in it, or by a name."""
    if spec.endswith(".json"):
        raise TaskError(
            f"{spec} is a saved graph, for plan, simulate and fit; to run a task give the task itself, a built-in name "
            "or file.py:function"
        )
    if spec.endswith(".py"):
        raise TaskError(f"{spec} names no function; add the one that returns a Task, such as {spec}:task")
    if isfile(spec):
        raise TaskError(f"{spec} is a file that is no task; give file.py:function, or a saved graph that ends in .json")


def cluster_of(spec: str) -> Cluster:
    """The Cluster of a TOML file, a catalogue name or `local:N`."""
    return load_cluster(spec)


def graph_of(task: Task | str, *, tell: Tell = quiet) -> Graph:
    """The Graph of a task's training step, captured, or read from a `graph.json`."""
    check_task(task)
    if isinstance(task, str) and task.endswith(".json"):
        return read_graph(Path(task))
    loaded = load(task) if isinstance(task, str) else task
    from partita.tracing.capture import capture

    tell(f"capturing {loaded.name}")
    return capture(loaded)


def capture_to(spec: str, path: str, *, tell: Tell = quiet) -> Graph:
    """Capture a task and write its graph to a file. Raises OptionError for a name by which no graph is read."""
    check_ending(Path(path), "graph", ".json")
    graph = graph_of(spec, tell=tell)
    write_graph(graph, Path(path))
    return graph
