"""Optimizers that step all of their tensors together: one bucket holds them, and what would part them is refused."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import optim

from partita.api import plan_of
from partita.errors import LoweringError
from partita.lowering.lower import last_program
from partita.oracles.check import checked
from partita.task import Task
from tests.captures import capture
from tests.small import cluster_of, perceptron


def clipped(parameters: Iterable[Any]) -> optim.Optimizer:
    """SGD behind a bound on the norm of all gradients that it is given."""
    given = list(parameters)
    made = optim.SGD(given, lr=0.1)
    made.register_step_pre_hook(lambda *_: torch.nn.utils.clip_grad_norm_(given, 0.05) and None)
    return made


def bounded() -> Task:
    return replace(perceptron(), name="bounded", optimizer=clipped)


@pytest.mark.parametrize(
    "text",
    [
        "single", "ddp(bucket_bytes=0)", "ddp(bucket_bytes=64,order=priority)", "zero1(bucket_bytes=64)",
        "zero2(bucket_bytes=64)", "zero3(bucket_bytes=64)", "ps_sync(bucket_bytes=64)", "local_sgd(period=2)",
    ],
)  # fmt: skip
def test_what_is_stepped_together_stays_together(text: str) -> None:
    task, machines = bounded(), cluster_of(1 if text == "single" else 2)
    found = checked(task, lambda graph: plan_of(text, graph, machines), machines)
    assert (found["equal"], found["because"]) == (True, "")


@pytest.mark.parametrize("text", ["gpipe(stages=2)", "one_f_one_b(stages=2,data=2,shard=optimizer)", "sfb"])
def test_what_would_part_them_is_refused(text: str) -> None:
    graph, machines = capture(bounded()), cluster_of(4)
    with pytest.raises(LoweringError, match=r"whose optimizer SGD may step .* bound norms by Task\.clip_norm"):
        last_program(graph, plan_of(text, graph, machines), machines)
    plain = capture(perceptron())
    assert last_program(plain, plan_of(text, plain, machines), machines).trained
