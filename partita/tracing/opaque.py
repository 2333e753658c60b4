"""The rung that always works: the user's module and autograd as one operator each way, split by samples only.

`partita.opaque_forward(parameters, buffers, inputs)` makes the loss, the weight where there is one, and the new value
of every buffer that changes. `partita.opaque_backward(loss, tangent, parameters, buffers, inputs)` makes the gradients
in the order of Graph.gradients. A worker carries both out with its own copy of the module.
"""

from __future__ import annotations

from typing import Any

import psutil
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from partita.errors import CaptureError, PartitaError, first_line
from partita.graph.graph import TANGENT, Buffer, Constant, Graph, Optimizer, Parameter
from partita.graph.operator import Operator, Phase, Ref
from partita.graph.tensor import Tensor
from partita.task import Task
from partita.tracing.convert import other_names, raw_bytes
from partita.tracing.prepare import DTYPES, build_batch, build_model, checked_model, flatten, split_loss
from partita.tracing.unify import Points, Unlike
from partita.units import show_bytes

SIZES = (2, 3)
FORWARD, BACKWARD = "opaque_forward_0", "opaque_backward_0"


def opaque_graph(task: Task, batch: int, precision: str, optimizer: Optimizer, reason: str) -> Graph:
    """A Graph of two operators. Raises CaptureError if not even one real step on two samples works."""
    _check_memory(task, precision)
    try:
        model = build_model(task, precision)
    except PartitaError:
        raise
    except Exception as error:
        raise CaptureError(
            f"the model of {task.name!r} cannot be built ({first_line(error)}); make task.model() work on its own first"
        ) from error
    model.zero_grad()
    before = {name: b.clone() for name, b in model.named_buffers()}
    weighted = _step(task, model, precision)
    changed = [name for name, b in model.named_buffers() if not torch.equal(b, before[name])]
    inputs, symbolic = _inputs(task, batch, precision)
    named = dict(model.named_parameters())
    gradients = [name for name, p in named.items() if p.grad is not None]
    scalar = Tensor((), str(DTYPES[precision])[6:])
    leaves: tuple[Any, ...] = tuple(
        tuple(Ref(name) for name in names) for names in (named, before, (name for name, _ in inputs))
    )  # fmt: skip
    first = 2 if weighted else 1
    made = (scalar,) * first + tuple(_spec(before[name]) for name in changed)
    forward = Operator(FORWARD, "partita.opaque_forward", leaves, (), made, True)
    backward = Operator(
        BACKWARD, "partita.opaque_backward", (Ref(FORWARD, 0), Ref(TANGENT), *leaves), (),
        tuple(_spec(named[name]) for name in gradients), True, Phase.BACKWARD, twin=FORWARD,
    )  # fmt: skip
    aliases = other_names(model)
    saved = model.state_dict(keep_vars=True)
    one = raw_bytes(torch.ones((), dtype=DTYPES[precision]))
    return Graph(
        name=task.name, batch=batch, operators=(forward, backward),
        parameters=tuple(
            Parameter(name, _spec(p), p.requires_grad, aliases[id(p)]) for name, p in named.items()
        ),
        buffers=tuple(Buffer(name, _spec(b), name in saved) for name, b in before.items()),
        constants=(Constant(TANGENT, scalar, one),), inputs=inputs,
        loss=Ref(FORWARD, 0), weight=Ref(FORWARD, 1) if weighted else None,
        gradients=tuple((name, Ref(BACKWARD, i)) for i, name in enumerate(gradients)),
        mutations=tuple((name, Ref(FORWARD, first + i)) for i, name in enumerate(changed)),
        optimizer=optimizer, rung="opaque", blind=reason, symbolic=symbolic, global_batch=task.batch_size,
        clip_norm=task.clip_norm or 0.0, samples=len(task.data),
    )  # fmt: skip


def _check_memory(task: Task, precision: str) -> None:
    """Raises CaptureError where parameters and gradients would not fit into this machine's memory."""
    try:
        with FakeTensorMode(allow_non_fake_inputs=True):
            elements = sum(p.numel() for p in checked_model(task).parameters())
    except Exception:  # a model that looks at data while it is built can only be tried
        return
    needed, free = 2 * elements * DTYPES[precision].itemsize, psutil.virtual_memory().available
    if needed > free:
        raise CaptureError(
            f"the step of {task.name!r} could not be traced, and to run it once takes {show_bytes(needed)} where "
            f"{show_bytes(free)} are free; capture a smaller model or use a machine with more memory"
        )


def _step(task: Task, model: nn.Module, precision: str) -> bool:
    """Run one real step, leaving the gradients in the model; whether the loss comes with a weight."""
    tensors, rest = flatten(build_batch(task, [i % len(task.data) for i in range(SIZES[0])], precision))
    try:
        value = task.loss(model, rest.batch(tensors))
    except Exception as error:
        raise CaptureError(
            f"the loss of {task.name!r} failed on a batch of {SIZES[0]} samples ({first_line(error)}); "
            f"make task.loss(task.model(), batch) work on its own first"
        ) from error
    loss, weight = split_loss(task, value)
    torch.autograd.backward(loss)
    return weight is not None


def _inputs(task: Task, batch: int, precision: str) -> tuple[tuple[tuple[str, Tensor], ...], bool]:
    """The batch's leaves, following the number of samples where they do so linearly, and whether they do."""
    sizes = [_leaves(task, size, precision) for size in SIZES]
    points = Points(*SIZES)
    try:
        joined = [points.tensor(a, b) for a, b in zip(*sizes, strict=True)]
    except (Unlike, ValueError):
        return tuple((f"input.{i}", t) for i, t in enumerate(_leaves(task, batch, precision))), False
    return tuple((f"input.{i}", t) for i, t in enumerate(joined)), True


def _leaves(task: Task, size: int, precision: str) -> list[Tensor]:
    tensors, _ = flatten(build_batch(task, [i % len(task.data) for i in range(size)], precision))
    return [_spec(t) for t in tensors]


def _spec(tensor: torch.Tensor) -> Tensor:
    return Tensor(tuple(tensor.shape), str(tensor.dtype)[6:], () if tensor.is_contiguous() else tensor.stride())
