"""The command line: each command calls one verb and answers; `main` says the answer and returns the exit code.

0 done   1 the answer is no   2 bad input   3 the run failed   4 it hung   130 interrupted   143 terminated
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from typer.main import get_command

from partita.errors import ClusterError, OptionError
from partita.report import arguments as arg
from partita.report.answer import Answer, lines_of, say, stdout_kept_free
from partita.report.failure import attempt, terminable
from partita.report.given import given
from partita.report.progress import telling

app = typer.Typer(rich_markup_mode=None, add_completion=False, help="Plan, predict, run and check parallel training.")
machines = typer.Typer(rich_markup_mode=None, help="Show, measure and rehearse clusters.")
app.add_typer(machines, name="cluster")


def main(words: list[str] | None = None) -> int:
    """Carry out a command line and return its exit code."""
    given = sys.argv[1:] if words is None else words
    as_json = "--json" in (given[: given.index("--")] if "--" in given else given)
    with stdout_kept_free() if as_json else nullcontext(), terminable(), telling() as tell:
        answer = attempt(lambda: get_command(app).main(given, prog_name="partita", standalone_mode=False, obj=tell))
    say(answer, as_json)
    return answer.code


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context, version: Annotated[bool, typer.Option("--version", help="print the version")] = False
) -> None:
    """Without a command: the version if asked for, else the help."""
    if version:
        from importlib.metadata import version as installed

        typer.echo(f"partita {installed('partita')}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command(epilog="Example: partita plan digits-cnn --cluster lab-4x1g --top 3")
def plan(
    context: typer.Context, task: arg.GraphSpec, cluster: arg.ClusterOption, objective: arg.Objective = "time",
    top: Annotated[int, typer.Option(min=1, help="how many plans to list")] = 5,
    output: arg.Output = None, allow: arg.Allow = "exact", costs: arg.Source = None, json: arg.Json = False,
) -> Answer:  # fmt: skip
    """Rank the plans for a task on a cluster by prediction."""
    from partita.searches.objective import check_objective

    where = given(cluster, files=(output,))
    check_objective(objective, allow, where)
    from partita import api
    from partita.plan.text import write_plan
    from partita.report.files import write_file
    from partita.report.json import search_body, setting_of
    from partita.report.table import costs_line, search_table

    graph = api.graph_of(task, tell=context.obj)
    found = api.search(
        graph, where, task=task, source=costs or "", objective=objective, top=top, allow=allow, tell=context.obj
    )
    body = search_body(found, setting_of(graph, where))
    if not any(candidate.fits for candidate in found.candidates):
        return Answer(body, (search_table(found),), 1, f"no plan for {graph.name} fits the memory of {where.name}")
    if output is not None:
        write_file(output, write_plan(found.best))
    return Answer(body, (search_table(found), found.explanation, costs_line(found.costs, found.because)))


@app.command(epilog="Example: partita simulate digits-cnn --cluster lab-4x1g --plan ddp")
def simulate(
    context: typer.Context, task: arg.GraphSpec, cluster: arg.ClusterOption, plan: arg.PlanOption,
    trace: arg.Trace = None, allow: arg.Allow = "exact", costs: arg.Source = None, json: arg.Json = False,
) -> Answer:  # fmt: skip
    """Predict a plan's step: seconds, memory, messages."""
    where = given(cluster, plan, files=(trace,))
    from partita import api
    from partita.report.json import setting_of, timeline_body
    from partita.report.table import costs_line, timeline_table
    from partita.report.trace import write_trace

    graph = api.graph_of(task, tell=context.obj)
    made = api.plan_of(plan, graph, where, task=task, allow=allow, tell=context.obj)
    known = api.costs_of(graph, where, [made], task=task, source=costs or "", tell=context.obj)
    timeline = api.simulate(graph, made, where, costs=known, tell=context.obj)
    if trace is not None:
        write_trace([timeline], trace)
    body = timeline_body(timeline, setting_of(graph, where)) | {"costs": known.source, "costs_because": known.because}
    return Answer(body, (timeline_table(timeline), costs_line(known.source, known.because)))


@app.command(epilog="Example: partita train digits-cnn --cluster local:2 --plan ddp --steps 20 --out run")
def train(
    context: typer.Context, task: arg.TaskSpec, cluster: arg.ClusterOption, plan: arg.PlanOption,
    steps: arg.Steps = None, epochs: arg.Epochs = None, seed: arg.Seed = 0,
    init: Annotated[str, typer.Option(metavar="FILE", help="weights to start from (safetensors)")] = "",
    out: Annotated[str, typer.Option(metavar="DIR", help="where weights and the manifest go")] = "",
    resume: Annotated[bool, typer.Option("--resume", help="go on with the run in --out")] = False,
    checkpoint_every: Annotated[int, typer.Option(min=0, metavar="K", help="write a checkpoint every K steps")] = 0,
    keep: Annotated[int, typer.Option(min=1, metavar="N", help="how many of the newest checkpoints stay")] = 2,
    deterministic: Annotated[bool, typer.Option("--deterministic", help="draw the same under every plan")] = False,
    timeout: Annotated[float, typer.Option(min=1, help="seconds without progress before giving up")] = 60.0,
    json: arg.Json = False,
) -> Answer:  # fmt: skip
    """Train a task by a plan."""
    if (steps is None) == (epochs is None):
        raise OptionError("train stops after --steps N or --epochs N; give one of them")
    where = given(cluster, plan)
    from partita import api
    from partita.report.json import Setting, timeline_body
    from partita.report.table import timeline_table

    samples = len(api.load(task).data)
    done = api.train(
        task, plan, where, steps=steps or 0, epochs=epochs or 0, seed=seed, init=init, out=out, resume=resume,
        checkpoint_every=checkpoint_every, keep=keep, deterministic=deterministic, timeout=timeout, tell=context.obj,
    )  # fmt: skip
    if done is None:  # rank 0 has the result
        return Answer()
    body = timeline_body(done.timeline, Setting(samples, devices=where.devices)) | {
        "final_loss": done.final_loss, "steps": done.steps, "loss": done.loss, "weights": done.weights_path,
        "notes": done.notes,
    }  # fmt: skip
    words = f"final loss {done.final_loss:.6g} after {done.steps} steps"
    return Answer(body, (*done.notes, timeline_table(done.timeline), words, *lines_of({"weights": done.weights_path})))


@app.command(epilog="Example: partita compare digits-cnn --cluster lab-4x1g --plans 'ddp,pipe_sgd(staleness=1)'")
def compare(
    context: typer.Context, task: arg.TaskSpec, cluster: arg.ClusterOption,
    plans: Annotated[str, typer.Option(metavar="P,P,...", help="recipe calls, plan files or auto")],
    steps: arg.Steps = None, seed: arg.Seed = 0,
    target_loss: Annotated[float | None, typer.Option(help="time how long each plan takes to this loss")] = None,
    repeat: Annotated[int, typer.Option(min=1, help="repeats, interleaved")] = 1,
    report: Annotated[Path | None, typer.Option(metavar="FILE", help="write an HTML page")] = None,
    trace: arg.Trace = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="keep the result for `partita report DIR`")] = None,
    json: arg.Json = False,
) -> Answer:  # fmt: skip
    """Predict plans, run them, and set the two side by side."""
    from partita.recipes.reading import split_plans

    chosen = split_plans(plans)
    where = given(cluster, *chosen, files=(report, trace))
    from partita import api
    from partita.report.comparison import verdict
    from partita.report.json import Setting, comparison_body
    from partita.report.page import write_page
    from partita.report.record import write_run
    from partita.report.table import comparison_table, refusals
    from partita.report.trace import write_trace

    loaded = api.load(task)
    enough = 10 if target_loss is None else len(loaded.data) // loaded.batch_size
    found = api.compare(
        task, chosen, where, steps=steps or enough, target_loss=target_loss, repeat=repeat, seed=seed,
        tell=context.obj,
    )  # fmt: skip
    if out is not None:
        write_run(found, out)
    if report is not None:
        write_page(found, report)
    if trace is not None:
        write_trace([t for row in found.rows for t in (row.predicted, row.measured) if t is not None], trace)
    body = comparison_body(found, Setting(len(loaded.data), devices=where.devices))
    text = (comparison_table(found), *refusals(found), verdict(found), *found.notes)
    none = "none of the plans could be run; each row says why" if all(row.error for row in found.rows) else ""
    return Answer(body, text, int(bool(none)), none)


@app.command(epilog="Example: partita report run")
def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="a folder that train --out or compare --out wrote")],
    output: arg.Output = None, json: arg.Json = False,
) -> Answer:  # fmt: skip
    """Write the HTML page of a run that was kept."""
    from partita.report.comparison import verdict
    from partita.report.page import write_page
    from partita.report.record import read_record

    found = read_record(run)
    page = output or (run if run.is_dir() else run.parent) / "report.html"
    write_page(found, page)
    return Answer({"path": str(page), "verdict": verdict(found)}, (verdict(found), f"report: {page}"))


@app.command(epilog="Example: partita verify digits-cnn --plan ddp --cluster local:2")
def verify(
    context: typer.Context, task: arg.TaskSpec, plan: arg.PlanOption,
    cluster: arg.ClusterOption = "", seed: arg.Seed = 0, json: arg.Json = False,
) -> Answer:  # fmt: skip
    """Check that a plan trains as one process does, within a stated tolerance."""
    where = given(cluster or "local:4", plan)
    from partita import api

    found = api.verify(task, plan, where, seed=seed, tell=context.obj)
    body = {("class" if key == "semantics" else key): value for key, value in asdict(found).items()}
    measured = f"{found.max_difference:.3g} apart from {found.against}, tolerance {found.tolerance:.3g}"
    single = f"fp32: {found.fp32_difference:.3g} apart, a reordered control {found.control_difference:.3g}"
    if not found.equal:
        return Answer(body, (single,), 1, f"{plan} is not equal ({found.semantics}): {measured}")
    return Answer(body, (f"{plan} is equal ({found.semantics}): {measured}", single))


@app.command(epilog="Example: partita fit gpt2-xl --cluster h100-dgx")
def fit(
    context: typer.Context,
    task: arg.GraphSpec,
    cluster: arg.ClusterOption,
    plan: arg.PlanOption = "ddp",
    json: arg.Json = False,
) -> Answer:
    """Say whether a plan fits the devices' memory, by how much, and what would."""
    where = given(cluster, plan)
    from partita import api
    from partita.units import show_bytes

    if not all(device.memory for device in where.devices):
        raise ClusterError(f"{where.name} does not say how much memory its devices have; add memory to each device")
    graph = api.graph_of(task, tell=context.obj)
    used = api.simulate(graph, plan, where, tell=context.obj).memory  # seconds may come from anywhere
    margin = min(device.memory - bytes for device, bytes in zip(where.devices, used, strict=False))
    body = {"plan": plan, "fits": margin >= 0, "margin_bytes": margin, "change": None, "peak_memory_bytes": used}
    if margin >= 0:
        return Answer(body, (f"{plan} fits {where.name}, with {show_bytes(margin)} to spare on the fullest device",))
    ranked = api.search(graph, where, tell=context.obj).candidates
    change = next((f"use --plan {c.plan.name}" for c in ranked if c.fits), None)
    missing = f"{plan} does not fit {where.name}: {show_bytes(-margin)} too much on the fullest device"
    return Answer(body | {"change": change}, (), 1, f"{missing}; {change or 'no plan of the search fits either'}")


@app.command(epilog="Example: partita capture digits-cnn -o graph.json")
def capture(context: typer.Context, task: arg.TaskSpec, output: arg.Output = None, json: arg.Json = False) -> Answer:
    """Capture a task's training step; a saved graph can be planned for without torch."""
    from partita.report.files import check_writable

    check_writable(output)
    from partita import api

    graph = api.capture_to(task, str(output), tell=context.obj) if output else api.graph_of(task, tell=context.obj)
    body = {
        "name": graph.name, "operators": len(graph.operators), "parameters": graph.parameter_elements,
        "batch": graph.global_batch or graph.batch, "samples": graph.samples, "rung": graph.rung, "blind": graph.blind,
        "symbolic": graph.symbolic, "path": str(output) if output else None,
    }  # fmt: skip
    return Answer(body, lines_of(body))


@machines.command(epilog="Example: partita cluster show lab-2x2")
def show(cluster: arg.ClusterArgument, json: arg.Json = False) -> Answer:
    """Draw a cluster: its switches, links and devices."""
    from partita.cluster.show import show_cluster
    from partita.cluster.text import load_cluster
    from partita.report.json import cluster_body

    found = load_cluster(cluster)
    return Answer(cluster_body(found), (show_cluster(found),))


@machines.command(epilog="Example: partita cluster probe lab-2x2")
def probe(context: typer.Context, cluster: arg.ClusterArgument = "local:2", json: arg.Json = False) -> Answer:
    """Measure the links of a cluster on this machine."""
    where = given(cluster)
    from partita import api

    found = api.probe(where, tell=context.obj)
    return Answer(found, lines_of(found))


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
    import inspect

    from partita.recipes.catalogue import RECIPES, parse
    from partita.report.json import recipes_body
    from partita.report.table import recipes_table

    chosen = {key: RECIPES[key] for key in ([parse(name)[0]] if name else RECIPES)}
    text = (inspect.getdoc(chosen[name].make) or "",) if name in chosen else ()
    return Answer(recipes_body(chosen), (recipes_table(chosen), *text))


@app.command(epilog="Example: partita doctor")
def doctor(json: arg.Json = False) -> Answer:
    """Say what this machine has and lacks for Partita."""
    from partita import api

    found = api.doctor()
    return Answer(found, lines_of(found))


if __name__ == "__main__":
    sys.exit(main())
