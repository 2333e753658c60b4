"""Checks of what the verbs are given in Python, before anything slow is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from os.path import isdir, isfile
from pathlib import Path
from typing import Any, Final

from partita.cluster.cluster import Cluster
from partita.cost.costs import Costs
from partita.cost.unlike import levelled
from partita.errors import ClusterError, OptionError, PlanError, TaskError
from partita.graph.graph import Graph
from partita.plan.plan import Plan
from partita.recipes.reading import read_text
from partita.searches.objective import check_weighed
from partita.searches.steps_of_plans import StepsOfPlans
from partita.searches.steps_to_loss import StepsToLoss
from partita.task import Task

MOST_SEED: Final = 2**63


def cluster_given(cluster: Any) -> Cluster:
    """A Cluster, or the one that a file or a text such as 'local:2' stands for. Raises ClusterError."""
    if isinstance(cluster, str | Path):
        return Cluster.load(cluster)
    if not isinstance(cluster, Cluster):
        raise ClusterError(f"the cluster is {_kind(cluster)}; give pt.Cluster.load('lab-4x1g'), or such a text itself")
    return cluster


def check_graph(graph: Any) -> None:
    """Raises TaskError for what is no Graph."""
    if not isinstance(graph, Graph):
        raise TaskError(f"the graph is {_kind(graph)}; give a Graph, which pt.capture(task) returns")


def check_task(task: Any) -> None:
    """Raises TaskError for what is neither a Task nor a text."""
    if not isinstance(task, Task | str):
        raise TaskError(
            f"the task is {_kind(task)}; give a pt.Task, such as a function of yours returns, the name of a built-in "
            "one or 'file.py:function'"
        )


def check_flags(**flags: Any) -> None:
    """Raises OptionError for what is neither True nor False: a text such as 'no' would be taken for True."""
    for name, value in flags.items():
        if type(value) is not bool:
            raise OptionError(f"{name} is {value!r}; give True or False")


def check_costs(costs: Any, graph: Graph, cluster: Cluster, source: str = "") -> None:
    """Raises OptionError for costs that are none, that are another cluster's, or beside which a `source` is given."""
    if costs is None:
        return
    if not isinstance(costs, Costs):
        raise OptionError(f"the costs are {_kind(costs)}; give Costs, such as partita.api.costs_of returns, or None")
    if levelled(graph, costs.cluster) != cluster:
        raise OptionError(
            f"the costs are those of {costs.cluster.name}, and the cluster is another, {cluster.name}; give that one, "
            "or costs of this"
        )
    if source:
        raise OptionError(f"source={source!r} says where costs come from, and costs are given; give one of them")


def check_steps_to_loss(steps: Any, objective: str) -> None:
    """Raises OptionError for steps to a loss that are none, or with which nothing would be done."""
    if steps is not None and not isinstance(steps, StepsToLoss | StepsOfPlans):
        raise OptionError(f"the steps to a loss are {_kind(steps)}; give StepsToLoss or StepsOfPlans, or None")
    check_weighed(steps is not None, objective)


def check_number(name: str, value: Any) -> None:
    """Raises OptionError for what is no finite number."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not isfinite(value):
        raise OptionError(f"{name} is {value!r}; give a finite number")


def check_bandwidths(bandwidths: Any) -> None:
    """Raises OptionError for what are no bandwidths."""
    if isinstance(bandwidths, str) or not isinstance(bandwidths, Sequence):
        raise OptionError(f"the bandwidths are {_kind(bandwidths)}; give a list of bytes a second, such as [1.25e8]")
    for each in bandwidths:
        check_number("a bandwidth", each)
        if each <= 0:
            raise OptionError(f"a bandwidth is {each!r}; give bytes a second above 0, such as 1.25e8")


def check_plans(*plans: Any) -> None:
    """Raises PlanError for what is no plan, nor the text of one."""
    for plan in plans:
        if isinstance(plan, str):
            read_text(plan)
        elif not isinstance(plan, Plan):
            raise PlanError(
                f"the plan is {_kind(plan)}; give a pt.Plan, such as pt.search(graph, cluster).best, or a text such as "
                "'ddp', 'plan.toml' or 'auto'"
            )


def plans_given(plans: Any) -> list[Plan | str]:
    """The plans to compare. Raises PlanError where there are none, or where two have the same name."""
    if isinstance(plans, str | Plan) or not isinstance(plans, Sequence) or not plans:
        raise PlanError(f"the plans are {_kind(plans)}; give a list of one or more, such as ['ddp', 'pipe_sgd']")
    check_plans(*plans)
    known: dict[str, Plan | str] = {}
    for plan in plans:
        name = name_of(plan)
        if plan in known.values():
            raise PlanError(
                f"the plan {name!r} is given twice; give it once, and repeat=2 (--repeat 2) to run all twice"
            )
        if known.setdefault(name, plan) != plan:
            raise PlanError(
                f"two plans are named {name!r}, and rows go by name; rename one: "
                "dataclasses.replace(plan, name='other')"
            )
    return list(known.values())


def name_of(plan: Plan | str) -> str:
    """What a row of a comparison is called: the text as it was given, or the plan's name."""
    return plan if isinstance(plan, str) else plan.name


def check_counts(least: int, **counts: Any) -> None:
    """Raises OptionError for a number that is not whole, or below `least`."""
    for name, value in counts.items():
        if type(value) is not int or value < least:
            raise OptionError(f"{name} is {value!r}; give a whole number, {least} or more")


def check_seed(seed: Any) -> None:
    """Raises OptionError for what cannot seed a random generator."""
    check_counts(0, seed=seed)
    if seed >= MOST_SEED:
        raise OptionError(f"seed is {seed}; give a whole number below {MOST_SEED}")


def check_training(
    *, steps: Any, epochs: Any, seed: Any, checkpoint_every: Any, keep: Any, evaluate_every: Any, patience: Any,
    timeout: Any,
) -> None:  # fmt: skip
    """Raises OptionError for numbers by which nothing could be trained."""
    counts = {"checkpoint_every": checkpoint_every, "evaluate_every": evaluate_every, "patience": patience}
    check_counts(0, steps=steps, epochs=epochs, **counts)
    if patience and not evaluate_every:
        raise OptionError(
            "--patience counts evaluations without a better held-out loss, and this run makes none before its end; "
            "give --evaluate-every N too, or leave --patience out"
        )
    if keep is not None:
        check_counts(1, keep=keep)
        if not checkpoint_every:
            raise OptionError(
                "--keep says how many checkpoints stay, and this run writes none; give --checkpoint-every K too, or "
                "leave --keep out"
            )
    check_seed(seed)
    check_timeout(timeout)
    if bool(steps) == bool(epochs):
        raise OptionError(f"steps is {steps} and epochs is {epochs}; give one of them, 1 or more")


def check_places(*, init: str, out: str, resume: Any, checkpoint_every: int) -> None:
    """Raises OptionError for weights that are not there, for what needs a directory where none is given, and for a
    directory that holds another run."""
    if init and not isfile(init):
        raise OptionError(f"there is no weights file {init}; give one that `partita train --out` wrote")
    if not out and (resume or checkpoint_every):
        what = "--resume goes on with the run in" if resume else "--checkpoint-every writes to"
        raise OptionError(f"{what} a directory; give it with --out DIR")
    if out and not resume and isdir(out):
        from partita.runs.directory import check_unused  # with torch: only where there may be a run

        check_unused(out)


def check_held_out(task: Task, evaluate_every: int) -> None:
    """Raises TaskError for a task that holds out no samples by which a run could be judged on its way."""
    if evaluate_every and task.validation is None:
        raise TaskError(
            f"--evaluate-every computes the loss of held-out samples, and Task.validation of {task.name!r} is None; "
            "give it a dataset, or leave --evaluate-every out"
        )


def check_timeout(timeout: Any) -> None:
    """Raises OptionError for seconds that are none."""
    number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
    if not number or not isfinite(timeout) or timeout <= 0:
        raise OptionError(f"timeout is {timeout!r}; give seconds above 0, such as 60.0")


def _kind(value: Any) -> str:
    if value is None:
        return "None"
    shown = f" {value!r}" if isinstance(value, str | int | float) else " without members" if value == [] else ""
    return f"of type {type(value).__name__}{shown}"
