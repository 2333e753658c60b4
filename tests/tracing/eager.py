"""The oracle: the user's module and autograd in plain eager PyTorch, with the same draws and the same precision."""

from __future__ import annotations

from typing import Any

import torch

from partita.graph.graph import Graph
from partita.task import Task
from partita.tracing.draws import KeyedDraws, sample_dims
from partita.tracing.prepare import build_batch, build_model
from partita.tracing.promote import Promoted
from tests.tracing.interpreter import interpret

SEED, STEP = 3, 1


def difference(task: Task, graph: Graph, batch: int) -> float:
    """Largest relative difference in fp64 of loss, gradients and new buffers between the graph and eager autograd."""
    torch.manual_seed(0)
    model = build_model(task, "fp64")
    data = build_batch(task, range(batch), "fp64")
    seen = interpret(graph, model, data, seed=SEED, step=STEP)
    with Promoted(), KeyedDraws(SEED, STEP, range(batch), sample_dims(graph)):
        value = task.loss(model, data)
        loss = value[0] if isinstance(value, tuple) else value
        loss.backward()
    pairs = [(loss.detach(), seen["loss"])]
    pairs += [(p.grad, seen["gradients"].get(name)) for name, p in model.named_parameters()]
    pairs += [(b, seen["mutations"][name]) for name, b in model.named_buffers() if name in seen["mutations"]]
    if graph.weight is not None:
        pairs.append((torch.as_tensor(value[1], dtype=torch.float64), seen["weight"]))
    largest = max(float(p.grad.norm()) for p in model.parameters() if p.grad is not None)
    return max(_relative(a, b, largest) for a, b in pairs if a is not None or b is not None)


def _relative(wanted: Any, got: Any, largest: float) -> float:
    """|wanted - got| / |wanted|; a gradient that is zero but for rounding counts relative to the largest."""
    return float((wanted - got).double().norm() / max(float(wanted.double().norm()), 1e-3 * largest))
