"""The commands: each reads what it was given, calls one verb and answers."""

from __future__ import annotations

from contextlib import nullcontext
from os.path import isdir
from pathlib import Path
from typing import Annotated, Any

import typer

import partita
from partita.errors import OptionError
from partita.lab.fork_client import load_ahead
from partita.report import arguments as arg
from partita.report.answer import Answer
from partita.report.given import check_allow, check_source, given

VARIABLES = (
    "Environment: PARTITA_PLUGINS=FILE.py,MODULE adds recipes, codecs and collectives; PARTITA_TRACEBACK=1 shows "
    "where an error comes from; NO_COLOR=1 means lines instead of a spinner; train obeys torchrun's RANK, WORLD_SIZE "
    "and MASTER_ADDR."
)
app = typer.Typer(
    rich_markup_mode=None, add_completion=False, help="Plan, predict, run and check parallel training.",
    epilog=VARIABLES, context_settings={"help_option_names": ["--help", "-h"]},
)  # fmt: skip
machines = typer.Typer(rich_markup_mode=None, help="Show, measure and rehearse clusters.")
app.add_typer(machines, name="cluster")


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context, version: Annotated[bool, typer.Option("--version", help="print the version")] = False
) -> None:
    """Without a command: the version if asked for, else the help."""
    if version:
        typer.echo(f"partita {partita.__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command(epilog="Example: partita plan digits-cnn --cluster lab-4x1g --top 3")
def plan(
    context: typer.Context, task: arg.GraphSpec, cluster: arg.ClusterOption, objective: arg.Objective = "time",
    top: arg.Top = 5, output: arg.Output = None, allow: arg.Allow = "exact", costs: arg.Source = None,
    known: arg.Known = None, json: arg.Json = False,
) -> Answer:  # fmt: skip
    """Rank the plans for a task on a cluster by prediction."""
    from partita.report.files import check_ending
    from partita.searches.objective import check_objective
    from partita.searches.steps_file import check_steps

    where = given(cluster, read=(task, str(known or "")), files=(output,))
    check_ending(output, "plan", ".toml")
    check_objective(objective, allow, where)
    check_source(costs, task, where)
    steps = check_steps(known, objective)
    from partita import api
    from partita.plan.text import write_plan
    from partita.report.answers import search_answer
    from partita.report.files import write_file

    loaded = api.task_of(task)
    graph = api.graph_of(loaded, tell=context.obj)
    found = api.search(
        graph, where, task=loaded, source=costs or "", objective=objective, top=top, allow=allow, steps_to_loss=steps,
        tell=context.obj,
    )  # fmt: skip
    answer = search_answer(found, graph, where)
    if output is not None and not answer.error:
        write_file(output, write_plan(found.best))
    return answer


@app.command(epilog="Example: partita simulate digits-cnn --cluster lab-4x1g --plan ddp")
def simulate(
    context: typer.Context, task: arg.GraphSpec, cluster: arg.ClusterOption, plan: arg.PlanOption,
    trace: arg.Trace = None, allow: arg.AllowAuto = None, costs: arg.Source = None, sweep: arg.Sweep = "",
    json: arg.Json = False,
) -> Answer:  # fmt: skip
    """Predict a plan's step: seconds, memory, messages. With --sweep, at other bandwidths as well."""
    where = given(cluster, plan, read=(task,), files=(trace,))
    check_allow(allow, plan)
    check_source(costs, task, where)
    from partita import api
    from partita.report.answers import sweep_answer, timeline_answer
    from partita.report.trace import write_trace
    from partita.searches.sweep import check_links, read_sweep

    bandwidths = read_sweep(sweep) if sweep else ()
    if bandwidths:
        check_links(where)
    loaded = api.task_of(task)
    graph = api.graph_of(loaded, tell=context.obj)
    order: dict[str, Any] = {"task": loaded, "source": costs or "", "tell": context.obj}
    made = api.plan_of(plan, graph, where, allow=allow or "exact", **order)
    known = api.costs_of(graph, where, [made], **order)
    timeline = api.simulate(graph, made, where, costs=known, tell=context.obj)
    if trace is not None:
        write_trace([timeline], trace)
    answer = timeline_answer(timeline, graph, where, known.source, known.because)
    return sweep_answer(answer, api.sweep(made, known, bandwidths, tell=context.obj)) if sweep else answer


@app.command(epilog="Example: partita train digits-cnn --cluster local:2 --plan ddp --steps 20 --out run")
def train(
    context: typer.Context, task: arg.TaskSpec, cluster: arg.ClusterOption, plan: arg.PlanOption,
    steps: arg.Steps = None, epochs: arg.Epochs = None, seed: arg.Seed = 0, init: arg.Init = "", out: arg.Out = "",
    resume: arg.Resume = False, checkpoint_every: arg.Every = 0, keep: arg.Keep = None,
    evaluate_every: arg.EvaluateEvery = 0, patience: arg.Patience = 0,
    deterministic: arg.Deterministic = False, timeout: arg.Timeout = 60.0, json: arg.Json = False,
) -> Answer:  # fmt: skip
    """Train a task by a plan."""
    if (steps is None) == (epochs is None):
        raise OptionError("train stops after --steps N or --epochs N; give one of them")
    where = given(cluster, plan, folder=Path(out) if out else None)
    load_ahead()  # while this process loads torch itself
    from partita import api
    from partita.report.answers import trained_answer

    done = api.train(
        task, plan, where, steps=steps or 0, epochs=epochs or 0, seed=seed, init=init, out=out, resume=resume,
        checkpoint_every=checkpoint_every, keep=keep, evaluate_every=evaluate_every, patience=patience,
        deterministic=deterministic, timeout=timeout, tell=context.obj,
    )  # fmt: skip
    return trained_answer(done) if done else Answer()  # rank 0 has the result


@app.command(epilog="Example: partita compare digits-cnn --cluster lab-4x1g --plans 'ddp,pipe_sgd(staleness=1)'")
def compare(
    context: typer.Context, task: arg.TaskSpec, cluster: arg.ClusterOption, plans: arg.Plans,
    steps: arg.Steps = None, seed: arg.Seed = 0, target_loss: arg.TargetLoss = None, repeat: arg.Repeat = 1,
    report: arg.Report = None, trace: arg.Trace = None, out: arg.Kept = None, sweep: arg.Sweep = "",
    write_steps: arg.WriteSteps = None, json: arg.Json = False,
) -> Answer:  # fmt: skip
    """Predict plans, run them, and set the two side by side."""
    from partita.recipes.reading import split_plans
    from partita.report.files import check_free, write_file
    from partita.report.steps import check_target, steps_of
    from partita.searches.sweep import read_sweep

    check_target(write_steps is not None, target_loss)
    chosen, bandwidths = split_plans(plans), read_sweep(sweep) if sweep else ()
    check_free(out)
    where = given(cluster, *chosen, read=(task,), files=(report, trace, write_steps), folder=out)
    load_ahead()  # while this process loads torch itself
    from partita import api
    from partita.report.answers import comparison_answer
    from partita.report.page import write_page
    from partita.report.record import write_run
    from partita.report.trace import write_trace
    from partita.runs.directory import claimed
    from partita.searches.steps_file import write_steps as text_of

    with nullcontext() if out is None else claimed(str(out)):
        found = api.compare(
            task, chosen, where, steps=steps or 0, target_loss=target_loss, repeat=repeat, seed=seed,
            bandwidths=bandwidths, tell=context.obj,
        )  # fmt: skip
        if out is not None:
            write_run(found, out)
    if report is not None:
        write_page(found, report)
    if write_steps is not None:
        write_file(write_steps, text_of(steps_of(found)))
    if trace is not None:
        write_trace([t for row in found.rows for t in (row.predicted, row.measured) if t is not None], trace)
    return comparison_answer(found)


@app.command(epilog="Example: partita report run")
def report(run: arg.Run, output: arg.Output = None, json: arg.Json = False) -> Answer:
    """Write the HTML page of a run that was kept."""
    from partita.report.comparison import verdict
    from partita.report.files import check_no_link
    from partita.report.page import write_page
    from partita.report.record import read_record

    found = read_record(run, output)
    page = output or (run if isdir(run) else run.parent) / "report.html"
    if output is None:
        check_no_link(page)
    write_page(found, page)
    return Answer({"path": str(page), "verdict": verdict(found)}, (verdict(found), f"report: {page}"))


@app.command(epilog="Example: partita verify digits-cnn --plan ddp --cluster local:2")
def verify(
    context: typer.Context, task: arg.TaskSpec, plan: arg.PlanOption,
    cluster: arg.ClusterOption = "local:4", seed: arg.Seed = 0, json: arg.Json = False,
) -> Answer:  # fmt: skip
    """Check that a plan trains as one process does. The tolerance is stated."""
    where = given(cluster, plan)
    from partita import api
    from partita.report.answers import verdict_answer

    return verdict_answer(api.verify(task, plan, where, seed=seed, tell=context.obj), plan)


@app.command(epilog="Example: partita fit gpt2-xl --cluster h100-dgx")
def fit(
    context: typer.Context, task: arg.GraphSpec, cluster: arg.ClusterOption, plan: arg.PlanOption = "",
    json: arg.Json = False,
) -> Answer:  # fmt: skip
    """Say whether a plan fits the devices' memory. Also by how much, and what would."""
    where = given(cluster, *filter(None, [plan]))
    from partita import api
    from partita.report.answers import fit_answer

    graph = api.graph_of(task, tell=context.obj)
    return fit_answer(api.fit(graph, where, plan, tell=context.obj), where)


@app.command(epilog="Example: partita capture digits-cnn -o graph.json")
def capture(context: typer.Context, task: arg.TaskSpec, output: arg.Output = None, json: arg.Json = False) -> Answer:
    """Capture a task's training step as a graph. A saved one can be planned for without torch."""
    from partita.report.files import check_writable

    check_writable(output)
    from partita import api
    from partita.report.answers import graph_answer

    graph = api.capture_to(task, str(output), tell=context.obj) if output else api.graph_of(task, tell=context.obj)
    return graph_answer(graph, str(output) if output else None)


@machines.command(epilog="Example: partita cluster show a100-dgx -o mine.toml   # a file to begin with")
def show(cluster: arg.ClusterArgument, output: arg.Output = None, json: arg.Json = False) -> Answer:
    """Draw a cluster: its switches, links and devices."""
    from partita.cluster.show import show_cluster
    from partita.cluster.writing import write_cluster
    from partita.report.files import check_new, write_file
    from partita.report.json import cluster_body

    found = given(cluster, files=(output,))
    if output is not None:
        text = write_cluster(found)
        check_new(output, text)
        write_file(output, text)
    return Answer(cluster_body(found), (show_cluster(found),))


@machines.command(epilog="Example: partita cluster probe lab-2x2")
def probe(context: typer.Context, cluster: arg.ClusterArgument = "local:2", json: arg.Json = False) -> Answer:
    """Measure the links of a cluster on this machine."""
    where = given(cluster)
    from partita import api
    from partita.report.answers import probe_answer

    return probe_answer(api.probe(where, tell=context.obj))


@machines.command(epilog="Example: partita cluster lab lab-4x1g -- python peer.py")
def lab(
    cluster: arg.ClusterArgument,
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND")],
    json: arg.Json = False,
) -> Answer:
    """Run a command on every device of an emulated cluster, with RANK, WORLD_SIZE and the like set."""
    where = given(cluster)
    from partita import api

    code = api.lab(where, command)
    return Answer({"exit_code": code}, (), code, f"{command[0]} left with exit code {code}" if code else "")


@app.command(epilog="Example: partita recipes ddp")
def recipes(name: Annotated[str, typer.Argument(metavar="[NAME]")] = "", json: arg.Json = False) -> Answer:
    """List the named methods, their knobs and their papers."""
    from partita.report.answers import recipes_answer

    return recipes_answer(name)


@app.command(epilog="Example: partita doctor")
def doctor(json: arg.Json = False) -> Answer:
    """Say what this machine has and lacks for Partita."""
    from partita import api
    from partita.report.answers import doctor_answer

    return doctor_answer(api.doctor())
