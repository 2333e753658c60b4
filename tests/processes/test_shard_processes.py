"""Divided state in real processes: the weights of a plain loop, and exactly the bytes that are predicted."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from partita import api
from partita.checkpoints.checkpoint import SavePolicy, place_of
from partita.cost.rings import collective_bytes
from partita.lowering.lower import last_program
from partita.program.instruction import Collective
from partita.simulator.simulate import simulate
from tests.priced import priced
from tests.processes.crews import Crews
from tests.processes.test_train import train_and_compare

TASK = "tests/runtime/padded.py:bounded"


@pytest.mark.parametrize("plan", ["zero1(bucket_bytes=100)", "zero2(microbatches=2)", "zero3(bucket_bytes=100,keep=1)"])
def test_weights_equal_a_plain_loop(crews: Crews, plan: str, tmp_path: Path) -> None:
    """ME-01, ME-02, ME-03 with a weighted loss and a bound on the norm."""
    train_and_compare(crews(TASK, "local:3"), plan, tmp_path)


def test_counted_bytes_are_those_of_the_closed_form(crews: Crews) -> None:
    """ME-01, ME-02: 2(N-1)/N of the parameters' bytes; ME-03: 3(N-1)/N; over all ranks, whose parts differ by one."""
    crew = crews("digits-cnn", "local:3")
    psi = crew.graph.trained_bytes
    for text, passes in (("zero1", 2), ("zero2(bucket_bytes=9000)", 2), ("zero3(bucket_bytes=9000)", 3)):
        plan = api.plan_of(text, crew.graph, crew.cluster)
        program = last_program(crew.graph, plan, crew.cluster)
        acts = program.roles[0].acts(Collective)
        predicted = [sum(sent) for sent in zip(*(collective_bytes(program, act, 3) for act in acts), strict=True)]
        take = crew.measure(plan, steps=2, evaluate=False)
        assert list(take.timeline.wire_sent) == predicted
        assert sum(predicted) == passes * 2 * psi


@pytest.mark.parametrize(
    "text",
    [
        "zero1(codec=q8)", "zero2(codec=onebit,bucket_bytes=9000,microbatches=2)",
        pytest.param("zero3(codec=fp16,bucket_bytes=9000)", marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_counted_bytes_of_codecs_are_those_predicted(crews: Crews, text: str) -> None:
    crew = crews("digits-cnn", "local:3")
    plan = api.plan_of(text, crew.graph, crew.cluster)
    program = last_program(crew.graph, plan, crew.cluster)
    costs = priced(crew.graph, crew.cluster, sorted({segment.batch for segment in program.segments}))
    take = crew.measure(plan, steps=2, evaluate=False)
    assert list(take.timeline.wire_sent) == list(simulate(program, costs).wire_sent)


def test_counted_bytes_are_those_of_the_last_phase(crews: Crews) -> None:
    """The first two steps send twice as much as those that the prediction is of."""
    crew = crews("digits-cnn", "local:3")
    plan = api.plan_of("post_local_sgd(switch=2,period=2)", crew.graph, crew.cluster)
    program = last_program(crew.graph, plan, crew.cluster)
    costs = priced(crew.graph, crew.cluster, sorted({segment.batch for segment in program.segments}))
    take = crew.measure(plan, steps=6, evaluate=False)
    assert sum(take.timeline.wire_sent) == pytest.approx(sum(simulate(program, costs).wire_sent), abs=64)


@pytest.mark.parametrize("text", ["zero3(bucket_bytes=100)"])
def test_a_run_goes_on_from_its_owners_parts(crews: Crews, text: str, tmp_path: Path) -> None:
    """Each rank writes what it owns; the unbroken run and the one in two legs end with the same bits."""
    crew = crews(TASK, "local:3")
    plan, run = api.plan_of(text, crew.graph, crew.cluster), str(tmp_path / "run")
    unbroken = crew.train(plan, steps=5, keep=SavePolicy(str(tmp_path / "unbroken")))
    crew.train(plan, steps=3, keep=SavePolicy(run, 3))
    again = crew.train(plan, steps=5, keep=SavePolicy(run, 3), resume=str(place_of(run, 3)), since=3)
    ours, theirs = load_file(again.weights), load_file(unbroken.weights)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
