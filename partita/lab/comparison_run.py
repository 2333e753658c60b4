"""Plans predicted from micro-benchmarks and then run, in turns, on one set of workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from partita.cluster.cluster import Cluster
from partita.cost.costs import Costs
from partita.cost.naive import naive
from partita.errors import RunError, RunStopped
from partita.graph.graph import Graph
from partita.lab.costing import Tell
from partita.lab.rehearsal import Rehearsal
from partita.lowering.lower import lower
from partita.plan.plan import Plan
from partita.program.timeline import Timeline
from partita.runtime.mean import divides, unlike_its_parts
from partita.runtime.memory_trace import MemoryTrace
from partita.runtime.result import RunResult
from partita.searches.break_even import break_even_of
from partita.searches.explaining import MOST_RANKS
from partita.searches.sweep import Sweep, sweep
from partita.simulator.simulate import simulate
from partita.task import Task
from partita.units import BytesPerSecond, Seconds


@dataclass(frozen=True)
class ComparisonRun:
    """The results of a comparison, each by the plan's text.

    `classes` are semantic classes, `predicted` Timelines, `guesses` the naive predictions in seconds by name, `memory`
    each rank's allocations, `results` one run for each repeat, `over` the predicted (bandwidth, seconds of a step),
    `failed` the sentence about a plan whose run failed.
    """

    classes: Mapping[str, str]
    predicted: Mapping[str, Timeline]
    guesses: Mapping[str, dict[str, Seconds]]
    memory: Mapping[str, tuple[MemoryTrace, ...]]
    results: Mapping[str, list[RunResult]]
    notes: tuple[str, ...]
    over: Mapping[str, tuple[tuple[BytesPerSecond, Seconds], ...]]
    failed: Mapping[str, str] = field(default_factory=dict)


Again = Callable[[str, Costs], Plan]
Foretold = tuple[Timeline, dict[str, Seconds]]  # before a run: the predicted Timeline, naive predictions by name


def run_comparison(
    task: Task, graph: Graph, cluster: Cluster, drafts: Mapping[str, Plan], *, again: Again, steps: int, repeat: int,
    seed: int, tell: Tell, evaluate: bool, bandwidths: Sequence[BytesPerSecond] = (),
) -> ComparisonRun:  # fmt: skip
    """Predict all plans, then run all plans, on one set of workers.

    Costs are measured first, and `again` makes each plan anew with them. Each plan is predicted before each of its
    runs, with costs as the machine is then, since its speed drifts; of several repeats' predictions the middle one
    counts, as of their runs. Repeats are interleaved; then memory is measured. `evaluate`: held-out losses are
    computed, in the first repeat. Steps at other `bandwidths` (bytes a second) are predicted only. Where a plan's run
    fails the others go on, with workers that are started again.

    Raises RunError where the runs of all plans fail.
    """
    results: dict[str, list[RunResult]] = {text: [] for text in drafts}
    failed: dict[str, RunError] = {}
    with ExitStack() as stack:
        rehearsal = stack.enter_context(Rehearsal(task, graph, cluster, seed=seed, tell=tell))
        plans, costs = measured_plans(rehearsal, drafts, again)
        programs = {text: lower(graph, plan, cluster)[-1].program for text, plan in plans.items()}
        foretold: dict[str, list[Foretold]] = {text: [] for text in plans}
        for turn in range(repeat):
            for text, plan in [each for each in plans.items() if each[0] not in failed]:
                tell(f"running {text}, repeat {turn + 1} of {repeat}")
                try:
                    now = rehearsal.as_now(costs, list(plans.values()))
                    foretold[text].append((simulate(programs[text], now), naive(programs[text], now)))
                    results[text].append(rehearsal.measure(plan, steps=steps, evaluate=evaluate and turn == 0))
                except RunStopped:
                    raise
                except RunError as error:
                    failed[text] = error
                    if len(failed) == len(plans):
                        raise failed[next(iter(plans))] from None
                    tell(f"{text} failed; starting workers again for the other plans")
                    stack.close()
                    rehearsal = stack.enter_context(Rehearsal(task, graph, cluster, seed=seed, tell=tell))
        tell("measuring memory")
        memory = {text: rehearsal.memory(plan) for text, plan in plans.items() if text not in failed}
        paid = [break_even_of(plan, costs) for plan in plans.values()] if cluster.size <= MOST_RANKS else []
        over = {text: points(sweep(plan, costs, tuple(bandwidths))) for text, plan in plans.items() if bandwidths}
        divided = any(map(divides, programs.values()))
        unlike = unlike_its_parts(task, graph.batch, seed) if divided else ""
        notes = (*rehearsal.notes, *([unlike] if unlike else ()), *(str(one) for one in paid if one))
    middle = {
        text: sorted(found, key=lambda one: one[0].step_seconds)[len(found) // 2]
        for text, found in foretold.items()
        if found
    }
    predicted = {text: found[0] for text, found in middle.items()}
    guesses = {text: found[1] for text, found in middle.items()}
    classes = {text: program.semantics for text, program in programs.items()}
    said = {text: str(error).partition("; the end of its log")[0] for text, error in failed.items()}
    return ComparisonRun(classes, predicted, guesses, memory, results, notes, over, said)


def measured_plans(rehearsal: Rehearsal, drafts: Mapping[str, Plan], again: Again) -> tuple[dict[str, Plan], Costs]:
    """(plans, costs): the drafts made `again` with measured costs, by which recipes cut stages and choose collectives.
    If this changes a plan, costs are measured once more, for the plans as they are now."""
    costs = rehearsal.probe(list(drafts.values()))
    plans = {text: again(text, costs) for text in drafts}
    return plans, costs if plans == dict(drafts) else rehearsal.probe(list(plans.values()))


def points(found: Sweep) -> tuple[tuple[BytesPerSecond, Seconds], ...]:
    """(bandwidth, seconds) of a step."""
    return tuple((point.bandwidth, point.seconds) for point in found.points)
