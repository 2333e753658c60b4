"""Captures that tests share: a model is traced once a process, whatever plans and optimizers it is checked under."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from partita.graph.graph import Graph, Optimizer
from partita.task import Task
from partita.tracing import capture as tracing
from partita.tracing.momentum import with_momentum
from partita.tracing.optimizer import optimizer_spec


@dataclass(frozen=True)
class Kind:
    """All that a capture sees of a task but for its optimizer; two of a kind have one Graph."""

    seen: tuple[Any, ...]
    task: Task = field(compare=False)
    precision: str = field(compare=False)


def capture(task: Task, *, precision: str = "") -> Graph:
    """`partita.tracing.capture.capture`, done once for tasks that are alike but for their data's values."""
    precision = precision or task.precision
    made = (source_of(task.model), source_of(task.loss), source_of(task.collate))
    seen = (task.name, task.batch_size, task.clip_norm, precision, type(task.data), len(task.data))
    samples = [(leaf.shape, leaf.dtype) for leaf in tree_leaves(task.data[0]) if isinstance(leaf, torch.Tensor)]
    kind = Kind((*made, *seen, *samples), task, precision)
    own = replace(_captured(kind), optimizer=optimizer_spec(task, precision))
    return _under(kind, with_momentum(own, task).optimizer)


def source_of(function: Callable[..., Any] | None) -> Any:
    """What makes two functions the same: where they are written, or which object it is (that a Kind keeps alive) where
    it holds something of its own."""
    if isinstance(function, partial):
        return source_of(function.func), function.args, tuple(sorted(function.keywords.items()))
    code = getattr(function, "__code__", None)
    if code is None or getattr(function, "__closure__", None) or function.__kwdefaults__:
        return id(function)
    return code.co_filename, code, function.__defaults__


@lru_cache(64)
def _under(kind: Kind, optimizer: Optimizer) -> Graph:
    return replace(_captured(kind), optimizer=optimizer)


@lru_cache(64)
def _captured(kind: Kind) -> Graph:
    return tracing.capture(kind.task, precision=kind.precision)
