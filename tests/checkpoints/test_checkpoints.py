"""A run that goes on from a checkpoint ends where the unbroken run ends, bit for bit under the same plan."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from partita.checkpoints.checkpoint import SavePolicy, committed, newest, place_of
from partita.checkpoints.manifest import NAME
from partita.checkpoints.restore import Checkpoint, lost, open_checkpoint
from partita.graph.graph import Graph
from partita.oracles.check import TOLERANCE, difference, gathered
from partita.plan.plan import Phase, Plan
from partita.program.space import Space
from partita.recipes.catalogue import call
from partita.runs.assembly import train_in_process
from partita.runs.execution import Execution, run
from partita.runs.session import Job, Session
from partita.runtime.brake import Brake
from partita.runtime.state import State
from partita.runtime.workload import Workload
from partita.task import Task
from tests.captures import capture
from tests.programs import program_by
from tests.runtime.padded import padded
from tests.small import cluster_of, perceptron

PLANS = (
    "single", "ddp(bucket_bytes=200)", "ps_sync(bucket_bytes=200)", "ps_sync(servers=1,own=false,bucket_bytes=100)",
    "pipe_sgd(bucket_bytes=200)", "pipe_sgd(staleness=2,warmup=3)", "local_sgd(period=2,bucket_bytes=300)",
    "local_sgd(period=3)", "diloco(period=3,fragments=2,lag=1,keep=0.5)", "zero1(bucket_bytes=200)",
    "zero3(bucket_bytes=100)", "pipe_sgd(codec=onebit,bucket_bytes=300)", "ddp(codec=topk(ratio=0.1))",
    "ddp(codec=powersgd(rank=1),bucket_bytes=300)", "zero2(codec=onebit,bucket_bytes=100)",
    "diloco(period=3,fragments=2,lag=1,codec=onebit)", "diloco(period=3,fragments=2,lag=1)",
)  # fmt: skip
# Of divided state nothing is held back between minibatches of unequal weight: their weight is not known so early.
WEIGHTED = tuple(plan for plan in PLANS if not plan.startswith("zero2(codec"))
STEPS = 9
Run = tuple[dict[int, State], dict[int, float]]


def moody() -> Task:
    """Batch statistics, Adam, a schedule and a bound on the gradient: much to remember."""

    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))

    return replace(
        perceptron(), name="moody", model=model, clip_norm=0.5,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=0.05),
        schedule=lambda optimizer: torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 5, 7]),
    )  # fmt: skip


TASKS = {"perceptron": perceptron, "moody": moody, "padded": padded}


@pytest.fixture(scope="module", params=TASKS)
def task(request: pytest.FixtureRequest) -> Task:
    return TASKS[request.param]()


@pytest.fixture(scope="module")
def graph(task: Task) -> Graph:
    return capture(task)


def trained(
    task: Task, graph: Graph, plan: str, steps: int = STEPS, size: int = 3, precision: str = "", **more: Any
) -> Run:
    machines = cluster_of(size)
    work = Workload(task, graph, precision=precision, keyed=True)
    return train_in_process(work, call(plan, graph, machines), machines, steps, **more)


def saved_at(out: Path, step: int) -> Checkpoint:
    return open_checkpoint(out / "checkpoints" / f"step-{step}")


def same(graph: Graph, one: Run, other: Run) -> bool:
    """Whether the weights and statistics of every worker, and all losses, are the same bits."""
    names = [leaf.name for leaf in (*graph.parameters, *graph.buffers)]
    equal = all(torch.equal(one[0][0].leaves[n], other[0][0].leaves[n]) for n in names)
    return equal and one[1] == other[1]


def check_ends(task: Task, graph: Graph, plan: str, out: Path, each: int) -> None:
    """The unbroken run's end is that of runs from its checkpoints, of every `each`-th."""
    unbroken = trained(task, graph, plan)
    assert same(graph, unbroken, trained(task, graph, plan, keep=SavePolicy(str(out), 1, 99)))
    steps = [int(path.name.removeprefix("step-")) for path in committed(out)]
    assert len(steps) >= STEPS // 3
    for step in steps[1::each]:
        again = trained(task, graph, plan, saved=saved_at(out, step), order=step)
        assert same(graph, unbroken, again), step


PLAIN = ("single", "ddp(bucket_bytes=200)", "pipe_sgd(staleness=2,warmup=3)")  # where there is little to remember


def of_each(perceptron: tuple[str, ...]) -> pytest.MarkDecorator:
    """Cases of each task, and of the perceptron so many."""
    plans = {"perceptron": perceptron, "moody": PLANS, "padded": WEIGHTED}
    cases = [(name, plan) for name in TASKS for plan in plans[name]]
    return pytest.mark.parametrize(("task", "plan"), cases, indirect=["task"], scope="module")


@of_each(PLAIN)
def test_a_checkpoint_leads_to_the_unbroken_end(task: Task, graph: Graph, plan: str, tmp_path: Path) -> None:
    check_ends(task, graph, plan, tmp_path, 9 if task.name == "moody" else 5)


@pytest.mark.slow
@of_each(PLANS)
def test_every_checkpoint_leads_to_the_unbroken_end(task: Task, graph: Graph, plan: str, tmp_path: Path) -> None:
    check_ends(task, graph, plan, tmp_path, 1)


def test_the_comparison_can_fail(task: Task, graph: Graph, tmp_path: Path) -> None:
    unbroken = trained(task, graph, "ddp", keep=SavePolicy(str(tmp_path), 1, 99))
    saved = saved_at(tmp_path, 4)
    entry = next(e for e in saved.contents.entries("state"))
    read = saved.contents.tensor
    saved.contents.tensor = lambda e: read(e) * 1.000001 if e == entry else read(e)  # type: ignore[method-assign]
    assert not same(graph, unbroken, trained(task, graph, "ddp", saved=saved))


def test_a_longer_run_goes_on_where_a_shorter_one_ended(task: Task, graph: Graph, tmp_path: Path) -> None:
    plan = "pipe_sgd(staleness=2)"
    trained(task, graph, plan, 5, keep=SavePolicy(str(tmp_path), 100))
    found = newest(tmp_path, print)
    assert found is not None
    assert (found.manifest.step, found.manifest.flying) == (5, 3)
    again = trained(task, graph, plan, saved=open_checkpoint(found.path))
    assert same(graph, trained(task, graph, plan), again)


MATRIX = (
    ("single", 1), ("ddp(bucket_bytes=200)", 3), ("ps_sync(bucket_bytes=100)", 3),
    ("ps_sync(servers=1,own=false,bucket_bytes=300)", 4), ("pipe_sgd(staleness=2)", 2),
    ("local_sgd(period=2,bucket_bytes=300)", 3), ("zero2(bucket_bytes=100)", 4), ("zero3(bucket_bytes=200)", 3),
)  # fmt: skip
EXACT = {"single", "ddp", "ps_sync", "zero2", "zero3"}


@pytest.mark.parametrize("before", MATRIX, ids=lambda one: one[0])
def test_any_plan_goes_on_from_any_other(task: Task, graph: Graph, before: tuple[str, int], tmp_path: Path) -> None:
    """Same parameters (what was in flight applied), same data order; exact plans end as they would have alone. Each of
    the pairs on one of the three tasks."""
    first = (MATRIX.index(before) + list(TASKS).index(task.name)) % len(TASKS)
    check_goes_on(task, graph, before, MATRIX[first :: len(TASKS)], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("before", MATRIX, ids=lambda one: one[0])
def test_any_plan_goes_on_from_any_other_on_every_task(
    task: Task, graph: Graph, before: tuple[str, int], tmp_path: Path
) -> None:
    check_goes_on(task, graph, before, MATRIX, tmp_path)


def check_goes_on(
    task: Task, graph: Graph, before: tuple[str, int], others: Sequence[tuple[str, int]], tmp_path: Path
) -> None:
    capable = capture(task, precision="fp64")
    plan, size = before
    trained(task, capable, plan, 6, size, keep=SavePolicy(str(tmp_path), 4), precision="fp64")
    until, _ = trained(task, capable, plan, 4, size, precision="fp64")
    alone, losses = trained(task, capable, "single", STEPS, 1, precision="fp64")
    for other, ranks in others:
        saved = saved_at(tmp_path, 4)
        there, _ = trained(task, capable, other, 4, ranks, precision="fp64", saved=saved)
        assert saved.manifest.flying == {"pipe_sgd(staleness=2)": 3, "ddp(bucket_bytes=200)": 1}.get(plan, 0)
        for parameter in graph.parameters:
            one, two = there[0].leaves[parameter.name], until[0].leaves[parameter.name]
            # What is in flight is clipped by the other plan, whose buckets sum the norm in another order.
            clipped = saved.manifest.flying and task.clip_norm and torch.allclose(one, two, rtol=1e-12, atol=1e-15)
            assert torch.equal(one, two) or clipped, other
        end, heard = trained(task, capable, other, STEPS, ranks, precision="fp64", saved=saved)
        assert sorted(heard) == list(range(STEPS))
        if {plan.split("(")[0], other.split("(")[0]} <= EXACT and task.name != "moody":
            for parameter in graph.parameters:
                torch.testing.assert_close(
                    end[0].leaves[parameter.name], alone[0].leaves[parameter.name], rtol=1e-9, atol=1e-12
                )
            assert heard == pytest.approx(losses, rel=1e-9)


DIVIDED = (
    ("single", 1), ("ddp(bucket_bytes=200)", 3), ("pipe_sgd(staleness=2)", 2), ("zero3(bucket_bytes=100)", 3),
    ("ps_sync(servers=2,own=false,bucket_bytes=100)", 4), ("gpipe(stages=2,microbatches=3)", 2),
    ("one_f_one_b(stages=2,data=2,microbatches=2,shard=parameters)", 4), ("zero_bubble(stages=3,microbatches=2)", 3),
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("before", DIVIDED, ids=lambda one: one[0])
def test_however_it_is_divided_training_goes_on(
    task: Task, graph: Graph, before: tuple[str, int], tmp_path: Path
) -> None:
    """Stages and divided state: the weights of the checkpoint to 1e-9, and the end and losses of one process that goes
    on from there, so the same samples in the same order; batch statistics are those of each plan's own sub-batches."""
    capable = capture(task, precision="fp64")
    plan, size = before

    def run(plan: str, size: int, steps: int, **more: Any) -> tuple[dict[str, torch.Tensor], dict[int, float]]:
        machines = cluster_of(size)
        states, losses = trained(task, capable, plan, steps, size, precision="fp64", **more)
        found = gathered(program_by(plan, capable, machines), states)
        return {parameter.name: found[parameter.name] for parameter in capable.parameters}, losses

    run(plan, size, 6, keep=SavePolicy(str(tmp_path), 4))
    until, _ = run(plan, size, 4)
    alone, losses = run("single", 1, STEPS, saved=saved_at(tmp_path, 4))
    for other, ranks in DIVIDED:
        there, _ = run(other, ranks, 4, saved=saved_at(tmp_path, 4))
        assert difference(there, until) <= TOLERANCE, other
        end, heard = run(other, ranks, STEPS, saved=saved_at(tmp_path, 4))
        assert sorted(heard) == list(range(STEPS))
        if task.name != "moody" and not other.startswith("pipe_sgd"):
            assert difference(end, alone) <= TOLERANCE, other
            assert heard == pytest.approx(losses, rel=1e-9), other


@pytest.mark.parametrize(("after", "size"), [("ddp(codec=topk(ratio=0.1))", 2), ("zero2(codec=onebit)", 3)])
def test_what_codecs_held_back_is_still_to_come(after: str, size: int, tmp_path: Path) -> None:
    """Among fewer workers, or of another codec: the sum of what all of them hold."""
    task = perceptron()
    graph = capture(task, precision="fp64")

    def held(plan: str, ranks: int, **more: Any) -> torch.Tensor:
        states, _ = trained(task, graph, plan, 4, ranks, precision="fp64", **more)
        assert len(states) == ranks
        return torch.stack([states[rank].kept[Space.RESIDUAL, "b0"] for rank in range(ranks)]).sum(0)

    before = held("ddp(codec=onebit)", 4, keep=SavePolicy(str(tmp_path), 4))
    there = held(after, size, saved=saved_at(tmp_path, 4))
    assert before.abs().max() > 0
    torch.testing.assert_close(there, before, rtol=1e-12, atol=1e-15)


def test_gradients_in_flight_are_applied_as_at_the_end_of_a_phase(task: Task, graph: Graph, tmp_path: Path) -> None:
    check_flight(task, graph, tmp_path)


def test_sums_in_flight_become_means_before_they_are_bounded(tmp_path: Path) -> None:
    task = padded(clip_norm=0.1)
    check_flight(task, capture(task), tmp_path)


def check_flight(task: Task, graph: Graph, out: Path) -> None:
    machines = cluster_of(3)
    late, lockstep = (call(f"{p}", graph, machines) for p in ("pipe_sgd(staleness=2)", "ddp"))
    lockstep = replace(lockstep, sync=(replace(late.sync[0], consistency=lockstep.sync[0].consistency),))
    whole = replace(lockstep, before=(Phase(4, late),))
    train_in_process(Workload(task, graph, keyed=True), late, machines, 6, keep=SavePolicy(str(out), 4))
    saved = saved_at(out, 4)
    unbroken = train_in_process(Workload(task, graph, keyed=True), whole, machines, STEPS)
    again = train_in_process(Workload(task, graph, keyed=True), lockstep, machines, STEPS, saved=saved)
    assert same(graph, unbroken, again)


def test_generators_go_on_where_they_were(tmp_path: Path) -> None:
    """Unkeyed dropout draws from torch's own generator."""
    task = replace(perceptron(), model=lambda: nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.5), nn.Linear(16, 3)))
    graph, machines = capture(task), cluster_of(1)
    plan = call("single", graph, machines)
    unbroken = train_in_process(Workload(task, graph), plan, machines, 6, keep=SavePolicy(str(tmp_path), 3))
    again = train_in_process(Workload(task, graph), plan, machines, 6, saved=saved_at(tmp_path, 3))
    assert same(graph, unbroken, again)


def test_what_is_lost_is_said(graph: Graph, task: Task, tmp_path: Path) -> None:
    def said(before: str, after: str, size: int) -> str:
        machines = cluster_of(size)
        trained(task, graph, before, 4, keep=SavePolicy(str(tmp_path), 4))
        program = program_by(after, graph, machines)
        return "; ".join(lost(saved_at(tmp_path, 4), graph, program))

    assert "3 gradients in flight are applied first" in said("pipe_sgd(staleness=2)", "ddp", 3)
    assert "mean of 3 workers'" in said("local_sgd(period=2)", "local_sgd(period=2)", 2)
    assert said("ddp", "pipe_sgd", 3) == ""
    assert ("batch statistics" in said("ddp", "ddp", 2)) == (task.name == "moody")


def alone() -> tuple[Session, Plan]:
    """A process that is the only rank, and its plan."""
    given, machines = perceptron(), cluster_of(1)
    session = Session(given, capture(given), machines, 0, 0, 1, 60.0)
    session.open()
    return session, call("single", session.graph, machines)


def test_a_run_that_stops_where_it_went_on_leaves_its_checkpoint_alone(tmp_path: Path) -> None:
    """A signal before the first step after a resume: the only checkpoint is neither removed nor written again."""
    session, plan = alone()
    run(session, Job(plan, 4, out=str(tmp_path), evaluate=False, every=2, keep=1), lambda event: None)
    (path,) = committed(tmp_path)
    saved, written = open_checkpoint(path), (path / NAME).stat().st_mtime_ns
    job, brake = Job(plan, 8, out=str(tmp_path), every=2, keep=1, resume=str(path)), Brake(saved.manifest.step)
    brake.release(brake.hold())
    execution = Execution(session, job, lambda event: None, saved, 0.0, brake)
    execution.go()
    assert (execution.stopped, execution.step) == (True, saved.manifest.step)
    assert [(each, (each / NAME).stat().st_mtime_ns) for each in committed(tmp_path)] == [(path, written)]


def test_what_comes_before_the_first_step_is_no_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that is long in the making, and when the run goes on, too."""
    (session, plan), making = alone(), Session.rank_for

    def slowly(*given: Any, **order: Any) -> Any:
        time.sleep(1.0)
        return making(*given, **order)

    monkeypatch.setattr(Session, "rank_for", slowly)
    began = time.perf_counter()
    first = run(session, Job(plan, 2, out=str(tmp_path), evaluate=False, every=2), lambda event: None)
    (path,) = committed(tmp_path)
    saved = open_checkpoint(path).manifest.seconds
    again = run(session, Job(plan, 4, evaluate=False, resume=str(path)), lambda event: None)
    took = time.perf_counter() - began - 2.0
    for found in (first, again):
        seconds = [end - found["begun"] for _, end in found["ends"]]
        assert 0 < seconds[0] <= seconds[-1] <= took
    assert seconds[:2] == pytest.approx([end - first["begun"] for _, end in first["ends"]])
    assert seconds[1] <= saved <= seconds[2]
    assert again["went_on"] - again["begun"] == pytest.approx(saved)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_run_says_which_signal_has_ended_it(number: signal.Signals, tmp_path: Path) -> None:
    """Ctrl-C is told from a scheduler's SIGTERM by the exit code, so each rank must know."""
    (session, plan), sent = alone(), list[int]()

    def report(event: dict[str, Any]) -> None:
        if "step" in event and not sent:
            sent.append(number)
            os.kill(os.getpid(), number)

    found = run(session, Job(plan, 10**6, out=str(tmp_path), evaluate=False), report)
    assert (found["stopped_by"], found["weights"]) == (number, "")
    assert place_of(tmp_path, found["stopped"]).exists()


@pytest.mark.parametrize(
    "plan", ["gpipe(stages=2,data=2,microbatches=2)", "zero_bubble(stages=2,data=2,microbatches=2)"]
)
def test_each_replica_of_a_stage_goes_on_with_its_own_statistics(plan: str, tmp_path: Path) -> None:
    """Of a stage's buffers the other stages have no copies, and so no part in them."""
    graph = capture(moody())
    whole, _ = trained(moody(), graph, plan, 4, size=4, keep=SavePolicy(str(tmp_path), 2, 9))
    saved = saved_at(tmp_path, 2)
    again, _ = trained(moody(), graph, plan, 4, size=4, saved=saved)
    for rank, state in whole.items():
        assert all(torch.equal(again[rank].leaves[name], leaf) for name, leaf in state.leaves.items()), rank
    assert not torch.equal(whole[0].leaves["1.running_mean"], whole[1].leaves["1.running_mean"])
    assert lost(saved, graph, program_by(plan, graph, cluster_of(4))) == []
    assert "mean of 2 workers'" in "".join(lost(saved, graph, program_by("ddp", graph, cluster_of(4))))
