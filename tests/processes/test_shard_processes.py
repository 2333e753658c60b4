"""Divided state in real processes: the weights of a plain loop, and exactly the bytes that are predicted."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from partita import api
from partita.cost.rings import collective_bytes
from partita.lab.rehearsal import Rehearsal
from partita.lowering.lower import lower
from partita.program.instruction import Collective
from tests.processes.test_train import train_and_compare


@pytest.mark.parametrize("plan", ["zero1(bucket_bytes=100)", "zero2(microbatches=2)", "zero3(bucket_bytes=100,keep=1)"])
def test_weights_equal_a_plain_loop(plan: str, tmp_path: Path) -> None:
    """ME-01, ME-02, ME-03 with a weighted loss and a bound on the norm."""
    train_and_compare("tests/runtime/padded.py:bounded", plan, "local:3", tmp_path)


def test_counted_bytes_are_those_of_the_closed_form() -> None:
    """ME-01, ME-02: 2(N-1)/N of the parameters' bytes; ME-03: 3(N-1)/N; over all ranks, whose parts differ by one."""
    task, cluster = "digits-cnn", api.cluster_of("local:3")
    graph = api.graph_of(task)
    psi = sum(parameter.tensor.size() for parameter in graph.trainable)
    with Rehearsal(task, graph, cluster) as crew:
        for text, passes in (("zero1", 2), ("zero2(bucket_bytes=9000)", 2), ("zero3(bucket_bytes=9000)", 3)):
            plan = api.plan_of(text, graph, cluster)
            program = lower(graph, plan, cluster)[-1].program
            acts = [i.act for i in program.roles[0].instructions if isinstance(i.act, Collective)]
            predicted = [sum(sent) for sent in zip(*(collective_bytes(program, act, 3) for act in acts), strict=True)]
            take = crew.measure(plan, steps=2, evaluate=False)
            assert list(take.timeline.wire_sent) == predicted
            assert sum(predicted) == passes * 2 * psi


@pytest.mark.parametrize("plan", ["zero3(bucket_bytes=100)"])
def test_a_run_goes_on_from_its_owners_parts(plan: str, tmp_path: Path) -> None:
    """Each rank writes what it owns; the unbroken run and the one in two legs end with the same bits."""
    task, cluster = "tests/runtime/padded.py:bounded", api.cluster_of("local:3")
    unbroken = api.train(task, plan, cluster, steps=5, seed=3, out=str(tmp_path / "unbroken"))
    for steps in (3, 5):
        again = api.train(
            task, plan, cluster, steps=steps, seed=3, out=str(tmp_path / "run"), checkpoint_every=3, resume=steps > 3
        )
    assert unbroken is not None
    assert again is not None
    ours, theirs = load_file(again.weights_path), load_file(unbroken.weights_path)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
