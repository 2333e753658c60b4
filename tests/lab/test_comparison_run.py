"""A comparison in which the run of a plan fails; workers are stood in for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import repeat
from typing import Any

import pytest

import partita as pt
from partita.cost.costs import Costs
from partita.errors import RunError, RunStopped
from partita.lab import comparison_run
from partita.lab.costing import batches_of
from partita.lab.keeper_client import KeeperClient
from partita.lab.lab import Lab
from partita.lab.profiler import Profiler
from partita.lab.rehearsal import Rehearsal
from partita.plan.plan import Plan
from partita.program.space import Kind
from partita.report.answers import comparison_answer
from partita.report.comparison import Comparison
from partita.runs.memory_trace import MemoryTrace
from partita.runs.result import RunResult
from partita.telling import quiet
from tests.api.factory import trained
from tests.priced import priced
from tests.report.timelines import measured

DIED = RunError("rank 1 was killed by SIGSEGV after step 3", log="a long story")


class Workers(Rehearsal):
    """Workers who fail at the plans in `fail`, and at the memory of those in `forget`, and can then be asked nothing
    more; before each run their host is as
    slow as the next of `paces` says."""

    fail: dict[str, RunError]
    forget: dict[str, RunError]
    paces: Iterator[float]
    begun = 0

    def __init__(self, task: Any, graph: Any, cluster: Any, **order: Any) -> None:
        self.graph, self.cluster, self.broken = graph, cluster, False

    @property
    def notes(self) -> tuple[str, ...]:
        return ()

    def __enter__(self) -> Workers:
        Workers.begun += 1
        return self

    def __exit__(self, *error: object) -> None:
        self.broken = True

    def probe(self, plans: Sequence[Plan], kinds: Sequence[Kind], schedules: Sequence[str]) -> Costs:
        return priced(self.graph, self.cluster, batches_of(self.graph, plans))

    def as_now(self, costs: Costs, plans: Sequence[Plan]) -> Costs:
        return replace(costs, slowdowns=(next(self.paces),) * self.cluster.size)

    def measure(self, plan: Plan, *, steps: int, evaluate: bool = True) -> RunResult:
        assert not self.broken
        if plan.name in self.fail:
            self.broken = True
            raise self.fail[plan.name]
        return RunResult(measured(plan.name), ((0, 0.1, 2.0),), 1.5, "")

    def memory(self, plan: Plan) -> tuple[MemoryTrace, ...]:
        assert not self.broken
        if plan.name in self.forget:
            self.broken = True
            raise self.forget[plan.name]
        return (MemoryTrace(7, ((0.0, 7),), measured(plan.name).spans),) * 2


def compared(
    monkeypatch: pytest.MonkeyPatch, paces: Iterable[float] = repeat(1.0), times: int = 2,
    forget: dict[str, RunError] | None = None, **fail: RunError,
) -> Comparison:  # fmt: skip
    monkeypatch.setattr(comparison_run, "Rehearsal", Workers)
    monkeypatch.setattr(Workers, "paces", iter(paces), raising=False)
    monkeypatch.setattr(Workers, "fail", fail, raising=False)
    monkeypatch.setattr(Workers, "forget", forget or {}, raising=False)
    monkeypatch.setattr(Workers, "begun", 0)
    return pt.compare(trained(), ["ddp", "zero1", "local_sgd"], "local:2", steps=2, repeat=times)


def test_a_plan_is_predicted_as_the_host_is_before_its_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The middle of three counts; before, plans that ran last on a host that had slowed down were too quick by that."""
    even = compared(monkeypatch)
    slow = compared(monkeypatch, paces=[1.0, 2.0, 2.0, 1.0, 1.0, 2.0, 4.0, 2.0, 2.0], times=3)
    steps = [(a.predicted, b.predicted) for a, b in zip(even.rows, slow.rows, strict=True)]
    ddp, zero1, last = [b.step_seconds / a.step_seconds for a, b in steps if a and b]
    assert ddp == pytest.approx(1.0)
    assert 1.2 < zero1 <= 2.0
    assert 1.2 < last <= 2.0


def profiled() -> tuple[Profiler, Costs, list[Plan]]:
    """A profiler that has measured nothing, costs that others measured, and their plans."""
    task, machines = trained(), pt.api.cluster_of("local:2")
    graph = pt.api.graph_of(task)
    plans = [pt.api.plan_of("ddp", graph, machines)]
    lab = Lab(machines, "loopback", (), KeeperClient.__new__(KeeperClient), (), 1)
    profiler = Profiler(graph, machines, lab, lambda *order: [], quiet)
    return profiler, priced(graph, machines, batches_of(graph, plans)), plans


def test_workers_that_take_the_place_of_others_keep_their_costs() -> None:
    """They have timed nothing before with which to compare: a comparison in which a plan diverged ended there."""
    profiler, costs, plans = profiled()
    assert profiler.as_now(costs, plans) is costs


def test_a_neighbour_who_works_for_a_moment_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    profiler, costs, plans = profiled()
    times = iter([1.0, 1.0, 1.0, 3.0, 1.0, *[1.2] * 7])
    profiler._places[True] = {}  # as after a probe
    monkeypatch.setattr(profiler, "_slowdowns", lambda *order: (time := next(times), 1.1 * time))
    found = [profiler.as_now(costs, plans).slowdowns for _ in range(12)]
    assert all(one == pytest.approx((1.0, 1.1)) for one in found[:5])
    assert found[-1] == pytest.approx((1.2, 1.32))


def test_a_plan_whose_run_fails_does_not_take_the_others_along(monkeypatch: pytest.MonkeyPatch) -> None:
    found = compared(monkeypatch, zero1=DIED)
    assert [row.plan for row in found.rows] == ["ddp", "zero1", "local_sgd"]
    assert [row.error for row in found.rows] == ["", "rank 1 was killed by SIGSEGV after step 3", ""]
    assert [row.measured.n for row in found.rows if row.measured] == [2, 2]
    assert Workers.begun == 2


def test_a_plan_whose_memory_cannot_be_measured_keeps_its_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """A note says so, and the memory of the others is measured by other workers."""
    found = compared(monkeypatch, forget={"zero1": DIED})
    assert [(row.error, row.measured.n, row.measured.memory) for row in found.rows if row.measured] == [
        ("", 2, (7, 7)), ("", 2, ()), ("", 2, (7, 7)),
    ]  # fmt: skip
    assert found.notes[0] == "the memory of zero1 could not be measured: rank 1 was killed by SIGSEGV after step 3"
    assert Workers.begun == 2


def test_a_comparison_in_which_no_plan_applies_says_why() -> None:
    """Nothing is run, and the command's exit code says no."""
    found = pt.compare(trained(), ["gpipe", "one_f_one_b"], "local:1", steps=2)
    assert all(row.error for row in found.rows)
    answer = comparison_answer(found)
    assert (answer.code, answer.error) == (1, "none of the plans could be run; each row says why")


def test_a_comparison_of_which_nothing_is_left_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("ddp", "zero1", "local_sgd")
    with pytest.raises(RunError, match="first, ddp"):
        compared(monkeypatch, **{name: RunError(f"first, {name}") for name in names})
    with pytest.raises(RunStopped):
        compared(monkeypatch, zero1=RunStopped("stopped", 2))
