"""Plans predicted from micro-benchmarks and then run, in turns, on one set of workers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace

from partita.cluster.cluster import Cluster
from partita.cost.costs import Costs
from partita.cost.naive import naive
from partita.errors import RunError, RunStopped
from partita.graph.graph import Graph
from partita.lab.link_costs import kinds_of
from partita.lab.rehearsal import Rehearsal
from partita.lowering.lower import last_program, lower
from partita.oracles.mean import divides, unlike_its_parts
from partita.plan.plan import Plan
from partita.program.timeline import Timeline
from partita.runs.memory_trace import MemoryTrace
from partita.runs.result import RunResult
from partita.searches.break_even import break_even_of, without_codecs
from partita.searches.explaining import MOST_RANKS
from partita.searches.sweep import Curve, Sweep, sweep
from partita.simulator.simulate import simulate
from partita.task import Task
from partita.telling import Tell
from partita.units import BytesPerSecond, Seconds

Again = Callable[[str, Costs], Plan]


@dataclass(frozen=True, slots=True)
class Foretold:
    """A step before it runs: the predicted `timeline`, the naive predictions in seconds by name."""

    timeline: Timeline
    naive: dict[str, Seconds]


@dataclass(frozen=True, slots=True)
class PlanRun:
    """What a comparison finds of a plan: its semantic class; predictions and results, one for each repeat; each rank's
    allocations; the step predicted `over` bandwidths. Where a run failed, the sentence that says why."""

    semantics: str
    foretold: tuple[Foretold, ...] = ()
    results: tuple[RunResult, ...] = ()
    memory: tuple[MemoryTrace, ...] = ()
    over: Curve = ()
    error: str = ""

    @property
    def middle(self) -> Foretold:
        """The prediction that counts, as the median of the runs does."""
        return sorted(self.foretold, key=lambda one: one.timeline.step_seconds)[len(self.foretold) // 2]

    def followed(self, before: Foretold, result: RunResult) -> PlanRun:
        """This and one repeat more."""
        return replace(self, foretold=(*self.foretold, before), results=(*self.results, result))


@dataclass(frozen=True, slots=True)
class ComparisonRun:
    """What each plan's runs found, by its text; `notes` on the machine, on memory that was not measured, on codecs."""

    runs: Mapping[str, PlanRun] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Trials:
    """How plans are tried: each `repeat` times, for `steps` steps. With `evaluate`, held-out losses are computed in the
    first repeat. Steps at other `bandwidths` (bytes a second) are predicted only; collectives are chosen among
    `schedules`."""

    steps: int
    repeat: int
    seed: int = 0
    evaluate: bool = False
    bandwidths: tuple[BytesPerSecond, ...] = ()
    schedules: tuple[str, ...] = ()


class _Workers:
    """One Rehearsal at a time, made by `start`: after a failure another takes its place as soon as it is needed."""

    def __init__(self, start: Callable[[], Rehearsal]) -> None:
        self.start, self._ready, self._stack = start, list[Rehearsal](), ExitStack()

    def __enter__(self) -> _Workers:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    @property
    def now(self) -> Rehearsal:
        """The workers that stand ready."""
        if not self._ready:
            self._ready.append(self._stack.enter_context(self.start()))
        return self._ready[0]

    @contextmanager
    def attempt(self, text: str, failed: dict[str, RunError]) -> Iterator[Rehearsal]:
        """The workers. A run that fails within is their last, and is `failed` by `text`. Raises RunStopped."""
        now = self.now
        try:
            yield now
        except RunStopped:
            raise
        except RunError as error:
            self._stack.close()
            self._ready.clear()
            failed[text] = error


class _Contest:
    """Plans that take turns on the workers. `runs` has what was found of each so far, `failed` whose run failed,
    `unmeasured` whose memory could not be measured."""

    def __init__(self, workers: _Workers, plans: Mapping[str, Plan], costs: Costs, tell: Tell) -> None:
        self.workers, self.plans, self.costs, self.tell = workers, plans, costs, tell
        now = workers.now
        self.programs = {text: last_program(now.graph, plan, now.cluster) for text, plan in plans.items()}
        self.runs = {text: PlanRun(program.semantics) for text, program in self.programs.items()}
        self.failed, self.unmeasured = dict[str, RunError](), dict[str, RunError]()

    @property
    def left(self) -> list[str]:
        """The plans of which no run has failed."""
        return [text for text in self.plans if text not in self.failed]

    def run(self, text: str, steps: int, *, evaluate: bool) -> None:
        """Predict a plan, with costs as the machine is now, and run it. Raises RunError once all have failed."""
        program = self.programs[text]
        with self.workers.attempt(text, self.failed) as now:
            today = now.as_now(self.costs, list(self.plans.values()))
            before = Foretold(simulate(program, today), naive(program, today))
            self.runs[text] = self.runs[text].followed(
                before, now.measure(self.plans[text], steps=steps, evaluate=evaluate)
            )
        if text in self.failed:
            self.runs[text] = PlanRun(program.semantics, error=self.failed[text].sentence)
            if not self.left:
                raise self.failed[next(iter(self.plans))]
            self.tell(f"{text} failed; starting workers again for the other plans")

    def measure_memory(self, text: str) -> None:
        """What a plan's ranks allocate."""
        with self.workers.attempt(text, self.unmeasured) as now:
            self.runs[text] = replace(self.runs[text], memory=now.memory(self.plans[text]))

    def predict_over(self, text: str, bandwidths: Sequence[BytesPerSecond]) -> None:
        """A plan's step at other bandwidths."""
        over = points(sweep(self.plans[text], self.costs, tuple(bandwidths)))
        self.runs[text] = replace(self.runs[text], over=over)


def run_comparison(
    task: Task, graph: Graph, cluster: Cluster, drafts: Mapping[str, Plan], again: Again, trials: Trials, tell: Tell
) -> ComparisonRun:
    """Predict all plans, then run all plans, on one set of workers.

    Costs are measured first, and `again` makes each plan anew with them. Each plan is predicted before each of its
    runs, with costs as the machine is then, since its speed drifts; of several repeats' predictions the middle one
    counts, as of their runs. Repeats are interleaved; then memory is measured. Where a plan's run fails the others go
    on, with workers that are started again; so they do where its memory cannot be measured. The memory of devices
    limits trainings, and nothing here: one set of workers times what all plans do, also of those that do not fit, and
    the memory that each took is part of the answer.

    Raises RunError where costs cannot be measured, or the runs of all plans fail.
    """
    with _Workers(lambda: Rehearsal(task, graph, cluster, seed=trials.seed, tell=tell)) as workers:
        plans, costs = measured_plans(workers.now, drafts, again, trials.schedules)
        notes = list(workers.now.notes)
        contest = _Contest(workers, plans, costs, tell)
        for turn in range(trials.repeat):
            for text in contest.left:
                tell(f"running {text}, repeat {turn + 1} of {trials.repeat}")
                contest.run(text, trials.steps, evaluate=trials.evaluate and turn == 0)
        tell("measuring memory")
        for text in contest.left:
            if trials.bandwidths:
                contest.predict_over(text, trials.bandwidths)
            contest.measure_memory(text)
    for text, error in contest.unmeasured.items():
        notes.append(f"the memory of {text} could not be measured: {error.sentence}")
    paid = [break_even_of(plan, costs) for plan in plans.values()] if cluster.size <= MOST_RANKS else []
    divided = any(map(divides, contest.programs.values()))
    unlike = unlike_its_parts(task, graph.batch, trials.seed) if divided else ""
    return ComparisonRun(contest.runs, (*notes, *([unlike] if unlike else ()), *(str(one) for one in paid if one)))


def measured_plans(
    rehearsal: Rehearsal, drafts: Mapping[str, Plan], again: Again, schedules: Collection[str]
) -> tuple[dict[str, Plan], Costs]:
    """(plans, costs): the drafts made `again` with measured costs, by which recipes cut stages and choose collectives
    among `schedules`. If this changes a plan, costs are measured once more, for the plans as they are now."""

    def costs_of(plans: Sequence[Plan]) -> Costs:
        beside = [without_codecs(plan) for plan in plans if any(sync.wire.codecs for sync in plan.sync)]
        parts = [part for plan in (*plans, *beside) for part in lower(rehearsal.graph, plan, rehearsal.cluster)]
        return rehearsal.probe(plans, kinds_of(part.program for part in parts), schedules)

    costs = costs_of(list(drafts.values()))
    plans = {text: again(text, costs) for text in drafts}
    return plans, costs if plans == dict(drafts) else costs_of(list(plans.values()))


def points(found: Sweep) -> Curve:
    """(bandwidth, seconds) of a step."""
    return tuple((point.bandwidth, point.seconds) for point in found.points)
