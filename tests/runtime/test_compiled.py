"""Segments that go through torch.compile compute what they compute without."""

from __future__ import annotations

import shutil
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from partita import api
from partita.cluster.text import load_cluster
from partita.plan.plan import COMPILED
from partita.plan.text import read_plan, write_plan
from partita.runs.assembly import train_in_process
from partita.runtime.workload import Workload
from partita.task import Task
from tests.captures import capture
from tests.small import dropping, perceptron


def weights(task: Task, plan: Any, ranks: int) -> list[torch.Tensor]:
    """After three steps; dropout's masks are those of seed and sample."""
    graph, cluster = capture(task), load_cluster(f"local:{ranks}")
    states, _ = train_in_process(Workload(task, graph, keyed=True), api.plan_of(plan, graph, cluster), cluster, 3)
    return [state.leaves[p.name] for state in states.values() for p in graph.parameters if p.name in state.leaves]


@pytest.mark.parametrize("task", [perceptron(), dropping()], ids=["plain", "drawing"])
@pytest.mark.parametrize(("recipe", "ranks"), [("single", 1), ("gpipe(stages=2,microbatches=2", 2)])
def test_what_is_compiled_is_the_same(task: Task, recipe: str, ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def counting(module: torch.fx.GraphModule, inputs: Any) -> Any:
        seen.append(sum(node.op == "call_function" for node in module.graph.nodes))
        return module.forward

    monkeypatch.setattr("partita.runtime.segment.COMPILER", counting)
    torch.compiler.reset()
    inside = "," if "(" in recipe else "("
    compiled = weights(task, f"{recipe}{inside}segments=compiled)", ranks)
    assert sum(seen) > 10
    assert len(seen) < 20  # of once a segment, or a part of one between draws, whatever the number of steps
    eager = weights(task, recipe + ")" * ("(" in recipe), ranks)
    assert all(torch.equal(a, b) for a, b in zip(compiled, eager, strict=True))


class Named(nn.Module):
    """A weight of any name between two uses of `fc.weight`."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name, self.fc = name, nn.Linear(6, 6, bias=False)
        self.register_parameter(name, nn.Parameter(torch.eye(6) * 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(self.fc(x) @ getattr(self, self.name), self.fc.weight)


@pytest.mark.parametrize("recipe", ["single", "single(segments=compiled)"])
def test_names_that_look_alike_are_different_values(recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("partita.runtime.segment.COMPILER", lambda module, inputs: module.forward)
    torch.compiler.reset()
    one, other = (
        weights(replace(perceptron(), model=partial(Named, name)), recipe, 1) for name in ("fc_weight", "other")
    )  # fmt: skip
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_a_plan_says_that_its_segments_are_compiled() -> None:
    task, cluster = perceptron(), load_cluster("local:2")
    plan = api.plan_of("ddp(segments=compiled)", capture(task), cluster)
    assert plan.kernels == (COMPILED,)
    assert read_plan(write_plan(plan)) == plan


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("c++"), reason="torch.compile needs a C++ compiler on processors")
def test_inductor_trains_alike() -> None:
    for one, other in zip(weights(perceptron(), "single(segments=compiled)", 1), weights(perceptron(), "single", 1),
                          strict=True):  # fmt: skip
        torch.testing.assert_close(one, other)
