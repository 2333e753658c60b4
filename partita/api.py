"""The verbs, in the order in which a task flows through them: load, capture, plan, simulate, train, compare, verify."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from partita.cluster.cluster import Cluster
from partita.cluster.text import load_cluster
from partita.cost.costs import Costs
from partita.errors import OptionError, PartitaError
from partita.graph.graph import Graph
from partita.graph.text import read_graph, write_graph
from partita.lab.costing import Tell, batches_of, costs_of, quiet
from partita.lowering.lower import lower
from partita.plan.plan import Plan
from partita.recipes.budget import settled
from partita.recipes.reading import AUTO, read_text
from partita.report.comparison import Comparison, Row, row_of
from partita.report.environment import environment
from partita.report.manifest import write_manifest
from partita.report.notebook import Shown, shown
from partita.report.record import write_run
from partita.report.setting import setting_of
from partita.report.trained import Trained
from partita.report.verdict import Verdict
from partita.searches.auto import auto, field_of
from partita.searches.exhaustive import Search
from partita.searches.finals import finalists, judged
from partita.searches.fit import Fit, usual
from partita.searches.fit import fit as fit_to
from partita.searches.minibatches import over_minibatches
from partita.searches.objective import ALLOWED
from partita.searches.pays import all_pay, asked
from partita.searches.steps_to_loss import StepsToLoss
from partita.searches.sweep import Sweep, check_links
from partita.searches.sweep import sweep as sweep_over
from partita.simulator.simulate import simulate as simulate_program
from partita.task import Task, load_task, spec_of
from partita.units import BytesPerSecond, Seconds
from partita.zoo.names import check_name

__all__ = [
    "Comparison", "Trained", "Verdict", "apply", "batches_of", "capture_to", "check_plans", "cluster_of", "compare",
    "costs_of", "doctor", "fit", "graph_of", "lab", "load", "plan_of", "probe", "search", "simulate", "sweep", "train",
    "verify",
]  # fmt: skip


def load(spec: str) -> Task:
    """The Task of `file.py:function`, `package.module:function` or a built-in name."""
    if ":" in spec:
        return load_task(spec)
    check_name(spec)
    from partita.zoo.tasks import built_in

    return load_task(spec, built_in)


def cluster_of(spec: str) -> Cluster:
    """The Cluster of a TOML file, a catalogue name or `local:N`."""
    return load_cluster(spec)


def graph_of(task: Task | str, *, tell: Tell = quiet) -> Graph:
    """The captured training step of a task, or what a `graph.json` holds."""
    if isinstance(task, str) and task.endswith(".json"):
        return read_graph(Path(task))
    loaded = load(task) if isinstance(task, str) else task
    from partita.tracing.capture import capture

    tell(f"capturing {loaded.name}")
    return capture(loaded)


def check_plans(*plans: Plan | str) -> None:
    """Raises PlanError for a plan's text that cannot be read, before a task is loaded."""
    for plan in plans:
        if isinstance(plan, str):
            read_text(plan)


def plan_of(
    plan: str | Plan, graph: Graph, cluster: Cluster, *, task: Task | str = "", allow: str = "exact",
    costs: Costs | None = None, tell: Tell = quiet,
) -> Plan:  # fmt: skip
    """The Plan of a recipe call, a plan file (`*.toml`), or `auto`: the best that `search` finds. `recompute=auto` is
    replaced by the operators that it stands for. Recipes choose stages and collectives by `costs`; without, by data
    sheets."""
    wanted = plan if isinstance(plan, Plan) else read_text(plan)
    if isinstance(wanted, Plan):
        return settled(wanted, graph, cluster, costs)
    if wanted is None:
        return search(graph, cluster, task=task, allow=allow, costs=costs, tell=tell).best
    return wanted.plan(graph, cluster, costs)


def search(
    graph: Graph, cluster: Cluster, *, task: Task | str = "", costs: Costs | None = None, source: str = "",
    objective: str = "time", top: int = 0, allow: str = "exact", steps_to_loss: StepsToLoss | None = None,
    tell: Tell = quiet,
) -> Search:  # fmt: skip
    """The best plans of a grid (`searches.space`), best first; `top` keeps so many (0: all). A formula on data-sheet
    costs prices every point of the grid, and the event clock ranks the best. Where `costs` are not given and this
    machine can stand for the cluster, workers that load `task` time the best plans, which are ranked again; where not,
    the result's `because` says why. With `steps_to_loss`, K(B), minibatch sizes B are compared by K(B) steps."""
    if steps_to_loss is not None:

        def ranked(by: str) -> Callable[[Graph], Search]:
            known: dict[str, Any] = {"task": task, "costs": costs, "source": by, "top": top, "allow": allow}
            return lambda one: search(one, cluster, objective="time-to-loss", tell=tell, **known)

        judge = None if costs is not None or source == "datasheet" else ranked(source)
        return over_minibatches(graph, steps_to_loss, ranked("datasheet"), judge)
    begun = time.perf_counter()
    tell("pricing every point of the grid by formula")
    field = field_of(graph, cluster, objective=objective, allow=allow)
    coded = asked(graph, cluster) if "lossy" in ALLOWED[allow] else ()
    known = costs or costs_of(graph, cluster, [*field.plans, *coded], source="datasheet")
    found = auto(field, known, objective=objective, allow=allow, tell=tell)
    if costs is None and source != "datasheet":
        few = finalists(found)
        known = costs_of(graph, cluster, [*(c.plan for c in few), *coded], task=task, source=source, tell=tell)
        found = judged(found, few, known, objective=objective, allow=allow, tell=tell)
    kept = found.candidates[:top] if top else found.candidates
    if "lossy" in ALLOWED[allow]:
        tell("simulating codecs")
        found = replace(found, pays=all_pay(known))
    sheet = f"; costs are data sheets', not measured: {found.because}" if found.because else ""
    return replace(
        found, candidates=kept, search_seconds=time.perf_counter() - begun, explanation=found.explanation + sheet
    )


def simulate(
    graph: Graph, plan: str | Plan, cluster: Cluster, *, task: Task | str = "", costs: Costs | None = None,
    tell: Tell = quiet,
) -> Shown:  # fmt: skip
    """The predicted Timeline of a plan in its steady state; notebooks draw it. Costs are `costs_of`'s unless given."""
    made = plan_of(plan, graph, cluster, task=task, tell=tell)
    known = costs or costs_of(graph, cluster, [made], task=task, tell=tell)
    tell(f"simulating {made.name}")
    return shown(simulate_program(lower(graph, made, cluster)[-1].program, known))


def sweep(plan: Plan, costs: Costs, bandwidths: Sequence[BytesPerSecond], *, tell: Tell = quiet) -> Sweep:
    """The plan's step at each bandwidth of the cluster's narrowest link; all other links keep their ratio to it."""
    tell(f"simulating {plan.name} at {len(bandwidths)} bandwidths")
    return sweep_over(plan, costs, tuple(bandwidths))


def fit(graph: Graph, cluster: Cluster, plan: str | Plan = "", *, tell: Tell = quiet) -> Fit:
    """Whether a plan (without one, data parallelism over all devices) fits the devices' memory, by how much, and what
    would make it fit. Raises ClusterError where the cluster does not say how much memory there is."""
    try:
        made = plan_of(plan or usual(graph, cluster), graph, cluster, tell=tell)
        lower(graph, made, cluster)
    except PartitaError:
        if plan:
            raise
        made = None
    tell("predicting memory")
    return fit_to(graph, cluster, made)


def train(
    task: Task | str, plan: Plan | str, cluster: Cluster, *, steps: int = 0, epochs: int = 0, seed: int = 0,
    init: str = "", out: str = "", resume: bool = False, checkpoint_every: int = 0, keep: int = 2,
    deterministic: bool = False, timeout: Seconds = 60.0, tell: Tell = quiet,
) -> Trained | None:  # fmt: skip
    """Train by a Plan, or a plan's text, on the cluster's devices, which are processes of this machine. These load the
    task themselves: give the text that they load it by, or a Task that a function at the top level of a file returned.

    Under torchrun this process is one rank, and only rank 0 returns a result. With `out`, a manifest is written there
    before the run begins, and a checkpoint every `checkpoint_every` steps, of which the newest `keep` stay; `resume`
    goes on from the last one, bit for bit under the same plan. Without checkpoints, a worker that dies is started again
    while the others go on, where the plan can do without it. Raises InputError; RunError; RunStopped where a signal has
    ended the run.
    """
    ranked = "RANK" in os.environ
    check_plans(plan)
    loaded, spec = (load(task), task) if isinstance(task, str) else (task, task.origin if ranked else spec_of(task))
    from partita.lab.train import train_on
    from partita.runtime.checkpoint import Keep
    from partita.runtime.torchrun import train_rank

    graph = graph_of(loaded, tell=tell)
    made = plan_of(plan, graph, cluster, task="" if ranked else spec, tell=tell)
    steps = steps or epochs * (len(loaded.data) // loaded.batch_size)
    if steps < 1:
        raise OptionError("nothing to do: give --steps N or --epochs N, 1 or more")
    if out and os.environ.get("RANK", "0") == "0":
        write_manifest(out, spec, made, cluster, seed=seed, steps=steps, init=init, deterministic=deterministic)
    tell(f"training {steps} steps of {made.name}")
    notes: list[str] = []

    def note(sentence: str) -> None:
        notes.append(sentence)
        tell(sentence)

    order: dict[str, Any] = {
        "steps": steps, "seed": seed, "init": init, "keep": Keep(out, checkpoint_every, keep), "resume": resume,
        "keyed": deterministic, "timeout": timeout, "note": note,
    }  # fmt: skip
    if ranked:
        ran = train_rank(loaded, graph, made, cluster, **order)
    else:
        ran = train_on(spec, loaded, graph, made, cluster, tell=tell, **order)
    if ran is None:
        return None
    if out:  # for `partita report`
        row = Row(made.name, None, ran.timeline, loss=ran.loss, final_loss=ran.final_loss, losses=(ran.loss,))
        write_run(Comparison((row,), spec, cluster, environment=environment()), Path(out))
    return Trained(
        made, ran.timeline, ran.loss, ran.final_loss, steps, ran.weights, tuple(notes), setting_of(graph, cluster)
    )


def compare(
    task: Task | str, plans: Sequence[Plan | str], cluster: Cluster, *, steps: int = 0,
    target_loss: float | None = None, repeat: int = 1, seed: int = 0, bandwidths: Sequence[BytesPerSecond] = (),
    evaluate: bool = True, tell: Tell = quiet,
) -> Comparison:  # fmt: skip
    """Predict every plan from micro-benchmarks, then run all plans, repeats interleaved, on one set of workers.

    Without `steps`: 10, or an epoch where there is a `target_loss`. Recipes choose stages by measured costs. Held-out
    losses are computed if `evaluate`. With `bandwidths` (bytes a second), a step is also predicted at each of these on
    the cluster's narrowest link. A plan that cannot apply becomes a row that says why. Raises PlanError for a text that
    is no plan, OptionError for bandwidths where no link has one.
    """
    check_plans(*plans)
    if bandwidths:
        check_links(cluster)
    spec, names = spec_of(task), [plan if isinstance(plan, str) else plan.name for plan in plans]
    loaded = load(task) if isinstance(task, str) else task
    from partita.lab.contest import contest

    graph = graph_of(loaded, tell=tell)
    steps = steps or (10 if target_loss is None else graph.samples // graph.global_batch)
    given = dict(zip(names, plans, strict=True))
    rows = {name: _planned(plan, graph, cluster, task=spec, tell=tell) for name, plan in given.items()}
    made = {text: plan for text, plan in rows.items() if isinstance(plan, Plan)}

    def again(text: str, costs: Costs) -> Plan:
        found = text if text == AUTO else _planned(given[text], graph, cluster, task=spec, costs=costs)
        return made[text] if isinstance(found, str) else found  # `auto` has measured what it judges

    order: dict[str, Any] = {
        "loaded": loaded, "steps": steps, "repeat": repeat, "seed": seed, "bandwidths": bandwidths,
    }  # fmt: skip
    ran = contest(spec, graph, cluster, made, again=again, evaluate=evaluate, **order, tell=tell)
    found = [
        row_of(name, rows[name], ran.predicted.get(name), ran.results.get(name, ()), ran.memory.get(name, ()),
               ran.guesses.get(name, {}), target_loss, ran.classes.get(name, ""), ran.over.get(name, ()))
        for name in names
    ]  # fmt: skip
    return Comparison(tuple(found), spec, cluster, ran.notes, environment(), setting_of(graph, cluster))


def _planned(plan: Plan | str, graph: Graph, cluster: Cluster, **order: Any) -> Plan | str:
    try:
        made = plan_of(plan, graph, cluster, **order)
        lower(graph, made, cluster)
        return made
    except PartitaError as error:
        return str(error)


def verify(
    task: Task | str, plan: Plan | str, cluster: Cluster | None = None, *, seed: int = 0, steps: int = 3,
    tell: Tell = quiet,
) -> Verdict:  # fmt: skip
    """Whether a plan trains as its class promises: in one process, in fp64, compared with plain PyTorch."""
    check_plans(plan)
    from partita.runtime.check import checked

    machines, loaded = cluster or load_cluster("local:4"), load(task) if isinstance(task, str) else task
    return Verdict(
        **checked(loaded, lambda graph: plan_of(plan, graph, machines), machines, seed=seed, steps=steps, tell=tell)
    )


def apply(plan: Plan | str, model: Any, optimizer: Any, loader: Any) -> tuple[Any, Any, Any]:
    """Data parallelism for a training loop of one's own, under torchrun: see `partita.runtime.apply.apply`."""
    from partita.runtime.apply import apply as applied

    return applied(plan, model, optimizer, loader)


def capture_to(spec: str, path: str, *, tell: Tell = quiet) -> Graph:
    """Capture a task and write its graph to a file."""
    graph = graph_of(spec, tell=tell)
    write_graph(graph, Path(path))
    return graph


def lab(cluster: Cluster, argv: Sequence[str]) -> int:
    """Run a command on every device of an emulated cluster; returns the first exit code that is not 0."""
    from partita.lab.command import run_command

    return run_command(cluster, list(argv))


def probe(cluster: Cluster, *, tell: Tell = quiet) -> dict[str, Any]:
    """What the links of a cluster on this machine do, measured."""
    from partita.lab.wires import probe_links

    return json.loads(json.dumps(probe_links(cluster, tell)))  # type: ignore[no-any-return]


def doctor() -> dict[str, Any]:
    """What this machine has and lacks for Partita."""
    from partita.lab.doctor import examine

    return examine()
