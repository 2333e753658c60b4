"""The verbs, in the order in which a task flows through them: load, capture, plan, simulate, train, compare, verify."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from partita.cluster.cluster import Cluster
from partita.cluster.text import load_cluster
from partita.cost.costs import Costs
from partita.cost.datasheet import datasheet_costs
from partita.cost.naive import naive
from partita.errors import InputError, OptionError, PartitaError, PlanError
from partita.graph.graph import Graph
from partita.graph.text import read_graph, write_graph
from partita.lowering.lower import lower
from partita.plan.plan import Plan
from partita.plan.text import read_plan
from partita.program.timeline import Timeline
from partita.recipes.catalogue import call
from partita.searches.exhaustive import Search, exhaustive, grid
from partita.simulator.simulate import simulate as simulate_program
from partita.task import Task, load_task
from partita.units import Seconds

Tell = Callable[[str], None]


def quiet(sentence: str) -> None:
    """Tell nobody."""


@dataclass(frozen=True)
class Trained:
    plan: Plan
    timeline: Timeline
    loss: tuple[tuple[int, Seconds, float], ...]
    final_loss: float
    steps: int
    weights_path: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Row:
    """A plan in a comparison: what was predicted before it ran, and the median of its measured repeats."""

    plan: str
    predicted: Timeline | None = None
    measured: Timeline | None = None
    naive: dict[str, Seconds] = field(default_factory=dict)
    loss: tuple[tuple[int, Seconds, float], ...] = ()
    seconds_to_target: float | None = None
    final_loss: float | None = None
    error: str = ""


@dataclass(frozen=True)
class Comparison:
    rows: tuple[Row, ...]
    task: str
    cluster: Cluster
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """`equal` within `tolerance` in fp64 `against` the named serial training.

    fp32's difference stands beside that of a control whose sums are only ordered otherwise.
    """

    equal: bool
    semantics: str
    max_difference: float
    tolerance: float
    against: str
    fp32_difference: float
    control_difference: float


def load(spec: str) -> Task:
    """The Task of `file.py:function`, `package.module:function` or a built-in name."""
    from partita.zoo.tasks import built_in

    return load_task(spec, built_in)


def cluster_of(spec: str) -> Cluster:
    """The Cluster of a TOML file, a catalogue name or `local:N`."""
    return load_cluster(spec)


def graph_of(task: Task | str, *, tell: Tell = quiet) -> Graph:
    """The captured training step of a task, or what a `graph.json` holds."""
    if isinstance(task, str) and task.endswith(".json"):
        return read_graph(Path(task))
    from partita.tracing.capture import capture

    loaded = load(task) if isinstance(task, str) else task
    tell(f"capturing {loaded.name}")
    return capture(loaded)


def plan_of(text: str, graph: Graph, cluster: Cluster, *, allow: str = "exact", tell: Tell = quiet) -> Plan:
    """The Plan of a recipe call, a plan file (`*.toml`), or `auto`."""
    if text.endswith(".toml"):
        path = Path(text)
        if not path.is_file():
            raise PlanError(f"there is no plan file {text}; give an existing one, a recipe call or auto")
        return read_plan(path.read_text())
    if text == "auto":
        return search(graph, cluster, allow=allow, tell=tell).best
    return call(text, graph, cluster)


def batches_of(graph: Graph, cluster: Cluster, plans: Sequence[Plan]) -> tuple[int, ...]:
    """Every batch size that the plans' segments run with."""
    programs = [s.program for plan in plans for s in lower(graph, plan, cluster)]
    return tuple(sorted({segment.batch for program in programs for segment in program.segments}))


def costs_of(graph: Graph, cluster: Cluster, plans: Sequence[Plan]) -> Costs:
    """Data-sheet costs of what the plans do; `compare` and `train` measure instead."""
    return datasheet_costs(graph, cluster, batches_of(graph, cluster, plans))


def applicable(graph: Graph, cluster: Cluster) -> list[Plan]:
    """The plans of the grid that apply here."""
    found = []
    for text in grid():
        try:
            plan = call(text, graph, cluster)
            lower(graph, plan, cluster)
            found.append(plan)
        except InputError:
            continue
    return found


def search(
    graph: Graph,
    cluster: Cluster,
    *,
    costs: Costs | None = None,
    objective: str = "time",
    top: int = 0,
    allow: str = "exact",
    tell: Tell = quiet,
) -> Search:
    """Rank every recipe and knob setting by simulation; `top` keeps so many (0: all)."""
    if objective not in ("time", "memory"):
        raise OptionError(f"--objective is {objective!r}; time and memory are known so far")
    tell("costing operators")
    known = costs or costs_of(graph, cluster, applicable(graph, cluster))
    found = exhaustive(graph, cluster, known, objective=objective, allow=allow, tell=tell)
    return replace(found, candidates=found.candidates[:top]) if top else found


def simulate(graph: Graph, plan: Plan, cluster: Cluster, *, costs: Costs | None = None, tell: Tell = quiet) -> Timeline:
    """The predicted Timeline of a plan's steady state."""
    tell(f"simulating {plan.name}")
    return simulate_program(lower(graph, plan, cluster)[-1].program, costs or costs_of(graph, cluster, [plan]))


def train(
    spec: str, plan_text: str, cluster: Cluster, *, steps: int = 0, epochs: int = 0, seed: int = 0, init: str = "",
    out: str = "", resume: bool = False, checkpoint_every: int = 0, keep: int = 2, deterministic: bool = False,
    timeout: Seconds = 60.0, cluster_spec: str = "", tell: Tell = quiet,
) -> Trained | None:  # fmt: skip
    """Train on the cluster's devices, which are processes of this machine.

    A checkpoint goes to `out` every `checkpoint_every` steps, the newest `keep` stay, and `resume` goes on from the
    last one, under the same plan bit for bit. Under torchrun, this process is one rank, and only rank 0 returns a
    result. Raises RunStopped where a signal has ended it.
    """
    from partita.lab.train import train_on
    from partita.runtime.checkpoint import Keep
    from partita.runtime.torchrun import train_rank

    task = load(spec)
    graph = graph_of(task, tell=tell)
    plan = plan_of(plan_text, graph, cluster, tell=tell)
    steps = steps or epochs * (len(task.data) // task.batch_size)
    if steps < 1:
        raise OptionError("nothing to do: give --steps N or --epochs N, 1 or more")
    tell(f"training {steps} steps of {plan.name}")
    notes: list[str] = []

    def note(sentence: str) -> None:
        notes.append(sentence)
        tell(sentence)

    order: dict[str, Any] = {
        "steps": steps, "seed": seed, "init": init, "keep": Keep(out, checkpoint_every, keep), "resume": resume,
        "keyed": deterministic, "timeout": timeout, "note": note,
    }  # fmt: skip
    if "RANK" in os.environ:
        take = train_rank(task, graph, plan, cluster, **order)
    else:
        take = train_on(spec, graph, plan, cluster, cluster_spec or cluster.name, tell=tell, **order)
    if take is None:
        return None
    return Trained(plan, take.timeline, take.loss, take.final_loss, steps, take.weights, tuple(notes))


def compare(
    spec: str, plans: Sequence[str], cluster: Cluster, *, steps: int = 10, target_loss: float | None = None,
    repeat: int = 1, seed: int = 0, cluster_spec: str = "", tell: Tell = quiet,
) -> Comparison:  # fmt: skip
    """Predict every plan from micro-benchmarks, then run all of them, repeats interleaved, on one set of workers."""
    from partita.lab.rehearsal import Rehearsal
    from partita.runtime.take import Take

    graph = graph_of(spec, tell=tell)
    rows = {text: _planned(text, graph, cluster, tell) for text in plans}
    made = {text: plan for text, plan in rows.items() if isinstance(plan, Plan)}
    takes: dict[str, list[Take]] = {text: [] for text in made}
    with Rehearsal(spec, graph, cluster, cluster_spec or cluster.name, seed=seed, tell=tell) as crew:
        costs = crew.probe(list(made.values()))
        predicted = {text: simulate(graph, plan, cluster, costs=costs, tell=tell) for text, plan in made.items()}
        guesses = {text: naive(lower(graph, plan, cluster)[-1].program, costs) for text, plan in made.items()}
        memory = {text: crew.memory(plan) for text, plan in made.items()}
        for turn in range(repeat):
            for text, plan in made.items():
                tell(f"running {text}, repeat {turn + 1} of {repeat}")
                takes[text].append(crew.measure(plan, steps=steps, evaluate=turn == 0))
        notes = crew.notes
    return Comparison(
        tuple(
            _row(
                text,
                rows[text],
                predicted.get(text),
                takes.get(text, []),
                memory.get(text, ()),
                guesses.get(text, {}),
                target_loss,
            )
            for text in plans
        ),
        spec,
        cluster,
        notes,
    )


def _planned(text: str, graph: Graph, cluster: Cluster, tell: Tell) -> Plan | str:
    try:
        plan = plan_of(text, graph, cluster, tell=tell)
        lower(graph, plan, cluster)
        return plan
    except PartitaError as error:
        return str(error)


def _row(
    text: str,
    plan: Plan | str,
    predicted: Timeline | None,
    takes: Sequence[Any],
    memory: tuple[int, ...],
    guesses: dict[str, Seconds],
    target: float | None,
) -> Row:
    if isinstance(plan, str) or predicted is None:
        return Row(text, error=str(plan))
    seconds = sorted(take.timeline.step_seconds for take in takes)
    measured = replace(
        takes[0].timeline, step_seconds=median(seconds), memory=memory, n=len(seconds), low=seconds[0], high=seconds[-1]
    )
    reached = next((at for _, at, loss in takes[0].loss if target is not None and loss <= target), None)
    return Row(text, predicted, measured, guesses, takes[0].loss, reached, takes[0].final_loss)


def verify(
    spec: str, plan_text: str, cluster: Cluster | None = None, *, seed: int = 0, steps: int = 3, tell: Tell = quiet
) -> Verdict:
    """Whether a plan trains as its class says: in one process, in fp64, against plain PyTorch."""
    from partita.runtime.check import checked

    machines = cluster or load_cluster("local:4")
    return Verdict(
        **checked(
            load(spec), lambda graph: plan_of(plan_text, graph, machines), machines, seed=seed, steps=steps, tell=tell
        )
    )


def capture_to(spec: str, path: str, *, tell: Tell = quiet) -> Graph:
    """Capture a task and write its graph to a file."""
    graph = graph_of(spec, tell=tell)
    write_graph(graph, Path(path))
    return graph


def lab(cluster: Cluster, argv: Sequence[str]) -> int:
    """Run a command on every device of an emulated cluster; the first failing exit code."""
    from partita.lab.command import run_command

    return run_command(cluster, list(argv))


def probe(cluster: Cluster, *, tell: Tell = quiet) -> dict[str, Any]:
    """Measured links of a cluster on this machine."""
    from partita.lab.rehearsal import probe_links

    return json.loads(json.dumps(probe_links(cluster, tell)))  # type: ignore[no-any-return]


def doctor() -> dict[str, Any]:
    """What this machine has and lacks for Partita."""
    from partita.lab.doctor import examine

    return examine()
