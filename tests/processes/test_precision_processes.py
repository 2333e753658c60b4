"""ME-11 in real processes: the bits of the run in one process, and half the bytes on the wire."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from partita import api
from partita.checkpoints.checkpoint import SavePolicy, place_of
from partita.cost.rings import collective_bytes
from partita.lowering.lower import last_program
from partita.program.instruction import Collective
from partita.runs.assembly import train_in_process
from partita.runtime.workload import Workload
from partita.task import Task, load_task
from partita.zoo.tasks import built_in
from tests.processes.crews import Crews
from tests.small import perceptron

TASK = "tests/runtime/padded.py:bounded"
SLOW = ("zero3(precision=bf16,sums=fp32)", "gpipe(stages=2,precision=fp16)")
PLANS = ("ddp(precision=fp16,scale_window=2)", *(pytest.param(plan, marks=pytest.mark.slow) for plan in SLOW))


@pytest.mark.parametrize("plan", PLANS)
def test_two_processes_end_with_the_bits_of_one(crews: Crews, plan: str, tmp_path: Path) -> None:
    """A sum of two does not depend on who adds; a run in two legs ends there as well."""
    crew, keep = crews(TASK, "local:2"), SavePolicy(str(tmp_path), 3)
    made = api.plan_of(plan, crew.graph, crew.cluster)
    states, _ = train_in_process(Workload(load_task(TASK), crew.graph, seed=crew.seed), made, crew.cluster, 5)
    crew.train(made, steps=3, keep=keep)
    ran = crew.train(made, steps=5, keep=keep, resume=str(place_of(tmp_path, 3)), since=3)
    for name, weight in load_file(ran.weights).items():
        ours = next(state.leaves[name] for state in states.values() if name in state.leaves)
        assert weight.dtype == torch.float32
        assert torch.equal(ours, weight), name


@pytest.mark.slow
def test_half_the_bytes_are_sent(crews: Crews) -> None:
    crew = crews("digits-cnn", "local:2")
    for text in ("ddp(precision=bf16)", "zero2(precision=fp16)"):
        plan = api.plan_of(text, crew.graph, crew.cluster)
        program = last_program(crew.graph, plan, crew.cluster)
        acts = [
            i.act for i in program.roles[0].instructions if isinstance(i.act, Collective) and i.act.bucket != "norm"
        ]
        predicted = [sum(sent) for sent in zip(*(collective_bytes(program, act, 2) for act in acts), strict=True)]
        take = crew.measure(plan, steps=2, evaluate=False)
        assert sum(predicted) == 2 * 2 * crew.graph.parameter_elements
        assert sum(take.timeline.wire_sent) == pytest.approx(sum(predicted), abs=64)


def halved() -> Task:
    return replace(built_in("digits-cnn"), name="halved", precision="bf16")


class Drawn:
    """Samples that are drawn as they are read, with numbers of torch's default dtype."""

    def __len__(self) -> int:
        return 96

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        draw = torch.Generator().manual_seed(index)
        return torch.randn(6, generator=draw), torch.randint(3, (), generator=draw)


def drawn() -> Task:
    return replace(perceptron(), name="drawn", data=Drawn(), precision="fp64")


@pytest.mark.parametrize(("name", "dtype"), [("halved", torch.bfloat16), ("drawn", torch.float64)])
def test_a_task_is_trained_in_its_own_precision(crews: Crews, name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    """Model and samples, which come as fp32; also samples that are drawn while others are computed with."""
    crew = crews(f"{__file__}:{name}", "local:2")
    plan = api.plan_of("ddp(microbatches=2)", crew.graph, crew.cluster)
    states, _ = train_in_process(
        Workload(load_task(f"{__file__}:{name}"), crew.graph, seed=crew.seed), plan, crew.cluster, 5
    )
    weights = load_file(crew.train(plan, steps=5, keep=SavePolicy(str(tmp_path))).weights)
    assert {weight.dtype for weight in weights.values()} == {dtype}
    assert all(torch.equal(states[0].leaves[name], weight) for name, weight in weights.items())
