"""Comparing plans, and checking one: they are run here, and compared with predictions or with plain PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from traceback import walk_tb
from typing import Any, Final

from partita.api.checking import (
    check_bandwidths,
    check_counts,
    check_flags,
    check_number,
    check_plans,
    check_seed,
    check_task,
    cluster_given,
    name_of,
    plans_given,
)
from partita.api.loading import graph_of, load
from partita.api.planning import plan_of, search, why_auto
from partita.cluster.cluster import Cluster
from partita.cost.costs import Costs
from partita.errors import PartitaError, RunError, first_line
from partita.graph.graph import Graph
from partita.lab.fork_client import load_ahead
from partita.lab.network import check_here
from partita.lowering.lower import lower
from partita.plan.plan import Plan
from partita.recipes.catalogue import AUTO
from partita.recipes.fastest import candidates
from partita.recipes.reading import chooses_collective
from partita.report.comparison import Comparison, Row, row_of
from partita.report.environment import environment
from partita.report.setting import setting_of
from partita.report.verdict import Verdict
from partita.searches.sweep import check_links
from partita.task import Task, judged_by, spec_of
from partita.telling import Tell, quiet
from partita.units import BytesPerSecond

STEP_FAILS: Final = (RuntimeError, IndexError, TypeError, ValueError)  # what torch raises of a task's own code
OURS: Final = ("partita", "torch")  # packages in which other exceptions are no fault of a task's own code


def compare(
    task: Task | str, plans: Sequence[Plan | str], cluster: Cluster | str, *, steps: int = 0,
    target_loss: float | None = None, repeat: int = 1, seed: int = 0, bandwidths: Sequence[BytesPerSecond] = (),
    evaluate: bool = True, tell: Tell = quiet,
) -> Comparison:  # fmt: skip
    """Predict every plan from micro-benchmarks, then run all plans, repeats interleaved, on one set of workers.

    Without `steps` there are 10 steps, or an epoch if there is a `target_loss`. Recipes choose stages by measured
    costs. Held-out losses are computed if `evaluate`. With `bandwidths` (bytes a second), a step is also predicted at
    each of these on the cluster's narrowest link. A plan that cannot apply becomes a row that says why.

    Raises PlanError for a text that is no plan, OptionError for bandwidths if no link has one.
    """
    check_task(task)
    chosen, machines = plans_given(plans), cluster_given(cluster)
    check_counts(0, steps=steps)
    check_counts(1, repeat=repeat)
    check_seed(seed)
    check_flags(evaluate=evaluate)
    if target_loss is not None:
        check_number("target_loss", target_loss)
    check_bandwidths(bandwidths)
    if bandwidths:
        check_links(machines)
    check_here(machines)
    load_ahead()
    loaded = load(task) if isinstance(task, str) else task
    spec, names = spec_of(loaded), [name_of(plan) for plan in chosen]
    from partita.lab.comparison_run import Trials, run_comparison

    graph = graph_of(loaded, tell=tell)
    steps = steps or (10 if target_loss is None else graph.samples // graph.global_batch)
    given = dict(zip(names, chosen, strict=True))
    notes = list[str]()
    drafts = {
        name: _planned(plan, graph, machines, notes.append, task=loaded, tell=tell) for name, plan in given.items()
    }
    made = {text: plan for text, plan in drafts.items() if isinstance(plan, Plan)}
    found = {text: Row(text, error=why) for text, why in drafts.items() if isinstance(why, str)}

    def again(text: str, costs: Costs) -> Plan:
        plan = text if text == AUTO else _planned(given[text], graph, machines, task=loaded, costs=costs)
        return made[text] if isinstance(plan, str) else plan  # `auto` has measured what it judges

    if made:
        schedules = tuple(candidates(machines.size)) if any(map(chooses_collective, chosen)) else ()
        trials = Trials(steps, repeat, seed, evaluate, tuple(bandwidths), schedules)
        ran = run_comparison(loaded, graph, machines, made, again, trials, tell)
        found |= {text: row_of(text, run, target_loss) for text, run in ran.runs.items()}
        notes += ran.notes
        if evaluate and loaded.validation is None and not all(row.error for row in found.values()):
            notes.append(f"final losses are of {judged_by(loaded)[2]}")
    rows = tuple(found[name] for name in names)
    return Comparison(rows, spec, machines, tuple(notes), environment(), setting_of(graph, machines))


def _planned(plan: Plan | str, graph: Graph, cluster: Cluster, note: Tell = quiet, **order: Any) -> Plan | str:
    """The Plan, or the sentence that says why it cannot apply. Why `auto` takes what it takes is a `note`."""
    try:
        if plan == AUTO:
            found = search(graph, cluster, **order)
            note(why_auto(found))
            made = found.best
        else:
            made = plan_of(plan, graph, cluster, **order)
        lower(graph, made, cluster)
        return made
    except PartitaError as error:
        return str(error)


def verify(
    task: Task | str, plan: Plan | str, cluster: Cluster | str | None = None, *, seed: int = 0, steps: int = 3,
    tell: Tell = quiet,
) -> Verdict:  # fmt: skip
    """Whether a plan's training equals what its semantic class promises: all ranks run in one process, in fp64, and are
    compared with plain PyTorch.

    Raises RunError for a step that fails, such as on samples with labels out of range.
    """
    check_task(task)
    check_plans(plan)
    check_counts(1, steps=steps)
    check_seed(seed)
    machines = cluster_given("local:4" if cluster is None else cluster)
    from partita.oracles.check import checked

    loaded = load(task) if isinstance(task, str) else task
    try:
        found = checked(
            loaded, lambda graph: plan_of(plan, graph, machines, widened=loaded.precision != "fp64"), machines,
            seed=seed, steps=steps, tell=tell,
        )  # fmt: skip
    except PartitaError:
        raise
    except Exception as error:
        if not isinstance(error, STEP_FAILS) and not _of_users(error):
            raise
        raise RunError(
            f"a step of {loaded.name!r} failed ({first_line(error)}); look at its samples, and at what its code does "
            "in fp32 and in fp64; PARTITA_TRACEBACK=1 shows where"
        ) from error
    return Verdict(**found)


def _of_users(error: Exception) -> bool:
    """Whether an exception arose in code that is neither ours nor torch's, or that such code called."""
    frames = (frame for frame, _ in walk_tb(error.__traceback__))
    return any(frame.f_globals.get("__name__", "").split(".")[0] not in OURS for frame in frames)
