"""What a run goes on from under another plan, or after a checkpoint that no other test writes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from partita.checkpoints.checkpoint import SavePolicy, place_of
from partita.checkpoints.entry import ALIKE
from partita.checkpoints.restore import Checkpoint, lost, open_checkpoint
from partita.oracles.check import checked
from partita.program.space import Space
from partita.recipes.catalogue import call
from partita.runs.assembly import train_in_process
from partita.runtime import rules
from partita.runtime.state import State
from partita.runtime.workload import Workload
from partita.task import Task
from tests.captures import capture
from tests.programs import program_by
from tests.runtime.padded import padded
from tests.runtime.test_groups import by_dimensions
from tests.small import cluster_of, perceptron


def trained(task: Task, plan: str, size: int, steps: int, **more: Any) -> dict[int, State]:
    graph, machines = capture(task), cluster_of(size)
    machines = replace(machines, name=f"local:{size}")
    return train_in_process(Workload(task, graph), call(plan, graph, machines), machines, steps, **more)[0]


def grouped() -> Task:
    return replace(perceptron(), name="grouped", optimizer=by_dimensions)


@pytest.mark.parametrize(
    ("task", "plan", "size"),
    [
        (grouped, "ddp(bucket_bytes=200)", 2), (grouped, "zero2(bucket_bytes=200)", 2),
        (perceptron, "zero1(rule=lamb,bucket_bytes=100)", 2), (perceptron, "zero2(bucket_bytes=1)", 4),
    ],
)  # fmt: skip
def test_a_run_of_groups_and_of_empty_parts_goes_on(task: Any, plan: str, size: int, tmp_path: Path) -> None:
    whole = trained(task(), plan, size, 6)
    trained(task(), plan, size, 3, keep=SavePolicy(str(tmp_path), 3))
    again = trained(task(), plan, size, 6, saved=open_checkpoint(place_of(tmp_path, 3)))
    for rank, state in whole.items():
        for name, flat in state.parameter.items():
            assert torch.equal(again[rank].parameter[name], flat), (rank, name)


def fading(optimizer: torch.optim.Optimizer) -> Any:
    return torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)


@pytest.mark.parametrize("plan", ["ssp", "ssp(own=false)", "ps_async"])
def test_a_worker_of_a_server_keeps_its_momentum_and_its_rate(plan: str, tmp_path: Path) -> None:
    """One worker, so that nothing depends on who comes first."""
    task, size = replace(perceptron(), schedule=fading, name="fading"), 1 if "own" in plan else 2
    whole = trained(task, plan, size, 6)
    trained(task, plan, size, 3, keep=SavePolicy(str(tmp_path), 3))
    again = trained(task, plan, size, 6, saved=open_checkpoint(place_of(tmp_path, 3)))
    worker = next(r for r, state in whole.items() if state.leaves)
    for name, leaf in whole[worker].leaves.items():
        assert torch.allclose(again[worker].leaves[name], leaf, rtol=1e-6, atol=1e-8), name


@pytest.mark.parametrize("plan", ["softsync", "dc_asgd(strength=0.5,decay=0.9)", "ps_async(own=false)"])
def test_a_server_goes_on_with_what_it_has_of_contributions(plan: str, tmp_path: Path) -> None:
    """Of fifteen contributions two make a step of softsync's: one is left."""
    old = trained(perceptron(), plan, 6, 3, keep=SavePolicy(str(tmp_path), 3))
    new = trained(perceptron(), plan, 6, 3, saved=open_checkpoint(place_of(tmp_path, 3)))
    for rank, state in old.items():
        assert new[rank].ledger.merged == state.ledger.merged
        assert new[rank].squares.keys() == state.squares.keys()
        assert all(torch.equal(new[rank].squares[name], flat) for name, flat in state.squares.items())
        sums = state.gradient if plan == "softsync" and state.ledger.merged else {}
        assert all(
            torch.equal(new[rank].gradient[name][0], flats[0]) and flats[0].any() for name, flats in sums.items()
        )
    sums = [e for e in open_checkpoint(place_of(tmp_path, 3)).contents.entries("served") if e.detail == "sum"]
    assert bool(sums) == (plan == "softsync")


@pytest.mark.parametrize(("plan", "need"), [("ps_async", 1), ("downpour(push=1,fetch=3)", 1), ("softsync", 2)])
@pytest.mark.parametrize("before", ["ddp", "softsync(n=3)"])
def test_contributions_that_nobody_counted_are_as_many_as_the_plan_makes(
    before: str, plan: str, need: int, tmp_path: Path
) -> None:
    """Of five workers' in three steps, but for those of a step that is not made: another number makes one here."""
    trained(perceptron(), before, 6, 3, keep=SavePolicy(str(tmp_path), 3))
    own, new = (trained(perceptron(), plan, 6, 3, **more) for more in ({}, {"saved": opened(tmp_path, 3)}))
    counts = [{name: n - n % need for name, n in states[5].ledger.merged.items()} for states in (own, new)]
    assert counts[0]
    assert counts[1] == counts[0]
    assert new[5].ledger.merged == counts[1]
    assert not any(flats[0].any() for flats in new[5].gradient.values())


def opened(out: Path, step: int) -> Checkpoint:
    return open_checkpoint(place_of(out, step))


@pytest.mark.parametrize("plan", ["dc_asgd(strength=0.5)", "dc_asgd(strength=0.5,own=false,servers=2)"])
def test_a_server_begins_with_workers_that_have_read_its_weights(plan: str, tmp_path: Path) -> None:
    """Whatever of the weights has moved since the run began is no delay of the first contributions."""
    trained(perceptron(), "ddp", 3, 3, keep=SavePolicy(str(tmp_path), 3))
    states = trained(perceptron(), plan, 3, 3, saved=opened(tmp_path, 3))
    given = [
        (s.kept.get((Space.SERVED, b), s.parameter[b]), one)
        for s in states.values()
        for (b, _), one in s.outbox.items()
    ]
    assert given
    assert all(torch.equal(weights, one) for weights, one in given)


def test_a_sum_that_will_make_no_step_is_said_to_be_left_out(tmp_path: Path) -> None:
    trained(perceptron(), "softsync", 6, 3, keep=SavePolicy(str(tmp_path), 3))
    saved, graph, machines = open_checkpoint(place_of(tmp_path, 3)), capture(perceptron()), cluster_of(6)
    said = [lost(saved, graph, program_by(plan, graph, machines)) for plan in ("softsync", "ddp")]
    assert [any("made a step" in sentence for sentence in one) for one in said] == [False, True]


def test_a_warm_up_at_a_server_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    factor, seen = rules.rate_factor, set[int]()
    trained(perceptron(), "ps_async(rate_warmup=4)", 4, 2, keep=SavePolicy(str(tmp_path), 2))
    monkeypatch.setattr(rules, "rate_factor", lambda update, step: seen.add(step) or factor(update, step))
    trained(perceptron(), "ps_async(rate_warmup=4)", 4, 4, saved=open_checkpoint(place_of(tmp_path, 2)))
    assert seen == {2, 3}


@pytest.mark.parametrize("plan", ["easgd(servers=1)", "eamsgd(servers=1)"])
def test_a_worker_tied_to_a_centre_goes_on_from_its_own_weights(plan: str, tmp_path: Path) -> None:
    """One worker, so that nothing depends on who comes first."""
    whole = trained(perceptron(), plan, 2, 24)
    trained(perceptron(), plan, 2, 12, keep=SavePolicy(str(tmp_path), 12))
    again = trained(perceptron(), plan, 2, 24, saved=open_checkpoint(place_of(tmp_path, 12)))
    for name, flat in whole[1].parameter.items():
        assert torch.equal(again[1].parameter[name], flat), name


@pytest.mark.parametrize(("before", "after"), [(3, 4), (4, 3)])
def test_another_number_of_workers_begins_at_the_centre(before: int, after: int, tmp_path: Path) -> None:
    """From the midst of a run: at its end all workers are there."""
    plan, graph = "easgd(servers=1,period=2)", capture(perceptron())
    trained(perceptron(), plan, before, 8, keep=SavePolicy(str(tmp_path), 4))
    saved, program = open_checkpoint(place_of(tmp_path, 4)), program_by(plan, graph, cluster_of(after))
    assert any("beside their centre" in sentence for sentence in lost(saved, graph, program))
    new = trained(perceptron(), plan, after, 4, saved=saved, settle=False)
    for name in (name for name in new[0].leaves if name.endswith("weight")):
        centre, *apart = [
            saved.contents.tensor(saved.contents.parts(kind, name, "", owner)[0])
            for kind, owner in (("parameter", ALIKE), *(("own", rank) for rank in range(before - 1)))
        ]
        assert (sum(apart) / len(apart) - centre).abs().max() > 1e-4
        assert all(torch.equal(state.leaves[name], centre) for state in new.values() if state.leaves)


def test_weights_that_workers_race_for_are_what_a_run_leaves(tmp_path: Path) -> None:
    raced = trained(perceptron(), "hogwild", 2, 4, keep=SavePolicy(str(tmp_path), 4))
    after = trained(perceptron(), "ddp", 2, 4, saved=open_checkpoint(place_of(tmp_path, 4)))
    for (space, bucket), flat in raced[0].kept.items():
        if space is Space.SHARED:
            assert torch.equal(after[0].parameter[bucket], flat)


def test_shared_weights_begin_with_those_of_the_checkpoint(tmp_path: Path) -> None:
    before = trained(perceptron(), "ddp", 2, 4, keep=SavePolicy(str(tmp_path), 4))
    after = trained(perceptron(), "hogwild", 2, 5, saved=open_checkpoint(place_of(tmp_path, 4)))
    first = trained(perceptron(), "hogwild", 2, 1)
    for name, leaf in ((name, leaf) for name, leaf in before[0].leaves.items() if name.endswith("weight")):
        moved = (after[0].leaves[name] - leaf).norm()
        assert moved < (after[0].leaves[name] - first[0].leaves[name]).norm(), name


def test_momentum_ahead_of_a_codec_keeps_its_sum(tmp_path: Path) -> None:
    four = trained(perceptron(), "ddp(codec=dgc)", 4, 4, keep=SavePolicy(str(tmp_path), 4))
    two = trained(perceptron(), "ddp(codec=dgc)", 2, 4, saved=open_checkpoint(place_of(tmp_path, 4)))
    for place in (place for place in four[0].kept if place[0] in ("velocity", "residual")):
        sums = [sum(state.kept[place] for state in ranks.values()) for ranks in (four, two)]
        assert torch.allclose(sums[0], sums[1], rtol=1e-5, atol=1e-7), place


def test_a_last_round_of_fewer_fetches_sums_what_it_pushed() -> None:
    """A loss that comes with a weight: three minibatches a fetch, then two."""
    made = lambda graph: call("downpour(push=1,fetch=3)", graph, cluster_of(3))  # noqa: E731
    assert checked(padded(), made, cluster_of(3), steps=5)["equal"]


def test_a_warm_up_counts_minibatches_also_where_each_worker_s_part_is_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    factor, seen = rules.rate_factor, set[int]()
    monkeypatch.setattr(rules, "rate_factor", lambda update, step: seen.add(step) or factor(update, step))
    made = lambda graph: call("ps_async(rate_warmup=2)", graph, cluster_of(3))  # noqa: E731
    assert checked(perceptron(), made, cluster_of(3), steps=4)["equal"]
    assert seen == {0, 1, 2, 3}


@pytest.mark.parametrize(("before", "after"), [("ddp", "easgd"), ("easgd", "ddp"), ("easgd", "diloco(lag=1,period=2)")])
def test_what_flies_is_not_taken_for_something_else(before: str, after: str, tmp_path: Path) -> None:
    """All have a lag of one round: a gradient, a pull of the centre, a change of weights."""
    old = trained(perceptron(), before, 2, 4, keep=SavePolicy(str(tmp_path), 4))
    saved = open_checkpoint(place_of(tmp_path, 4))
    graph, machines = capture(perceptron()), cluster_of(2)
    assert saved.flying(program_by(before, graph, machines)) == saved.manifest.flying
    assert saved.flying(program_by(after, graph, machines)) == 0
    new = trained(perceptron(), after, 2, 4, saved=saved)
    assert all(leaf.isfinite().all() for leaf in new[0].leaves.values())
    assert new.keys() == old.keys()
