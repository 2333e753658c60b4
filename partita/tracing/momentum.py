"""The momentum of a task's SGD as all its parameters have it: what can be applied before a codec instead (SP-03)."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from partita.graph.graph import Graph
from partita.graph.tensor import Tensor
from partita.task import Task
from partita.tracing.copies import fakes_cloned
from partita.tracing.optimizer import optimizer_for

STEPS: Final = 5  # of a schedule, in which one that moves the momentum shows it
Settings = tuple[float, bool, float]


def with_momentum(graph: Graph, task: Task) -> Graph:
    """The graph whose optimizer says how momentum acts on all of its weights, if it is SGD, whose may differ by group
    and by step."""
    if graph.optimizer.name != "SGD":
        return graph
    with FakeTensorMode(), fakes_cloned():
        weights = [_empty(p.tensor) for p in graph.trainable]
        optimizer = optimizer_for(task, weights)
        groups = _settings(optimizer)
        moved = task.schedule is not None and _moves(task, optimizer)
    momentum, nesterov, dampening = max(groups)
    decays = any(group["weight_decay"] for group in optimizer.param_groups)
    why = (
        "its groups have several kinds of it" if len(set(groups)) > 1
        else "its gradients are dampened" if momentum and dampening
        else "its schedule moves it" if moved else ""
    )  # fmt: skip
    rule = replace(graph.optimizer, momentum=momentum, nesterov=nesterov, decays=decays, fixed_to=why)
    return replace(graph, optimizer=rule)


def _empty(tensor: Tensor) -> torch.Tensor:
    return torch.empty(tensor.shape_at(), dtype=getattr(torch, tensor.dtype))


def _settings(optimizer: torch.optim.Optimizer) -> list[Settings]:
    return [(float(g["momentum"]), bool(g["nesterov"]), float(g["dampening"])) for g in optimizer.param_groups]


def _moves(task: Task, optimizer: Any) -> bool:
    """Whether the task's schedule changes the momentum in its first steps."""
    assert task.schedule is not None
    before, schedule = _settings(optimizer), task.schedule(optimizer)
    with suppress(Exception):  # a schedule may be for fewer steps, and capture has stepped it once
        for _ in range(STEPS):
            optimizer.step()
            schedule.step()
            if _settings(optimizer) != before:
                break
    return _settings(optimizer) != before
