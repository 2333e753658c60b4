"""What an optimizer keeps, seen by letting it take one step on a small parameter."""

from __future__ import annotations

import torch

from partita.errors import TaskError
from partita.graph.graph import Optimizer
from partita.task import Task
from partita.tracing.prepare import DTYPES

MIXES_ELEMENTS = ("lamb", "lars", "muon", "adafactor", "shampoo", "soap", "lbfgs", "galore")


def optimizer_spec(task: Task, precision: str) -> Optimizer:
    """Name and state tensors of the task's optimizer. Raises TaskError if it cannot be built or cannot step."""
    parameter = torch.nn.Parameter(torch.ones(16, 24, dtype=DTYPES[precision]))
    parameter.grad = torch.ones_like(parameter)
    try:
        optimizer = task.optimizer([parameter])
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise TypeError(f"it returned {type(optimizer).__name__}")
        optimizer.step()
    except Exception as error:
        raise TaskError(
            f"the optimizer of {task.name!r} could not take a step on one parameter ({type(error).__name__}: {error}); "
            f"return a torch.optim.Optimizer over the parameters given"
        ) from error
    name = type(optimizer).__name__
    state = tuple(
        (key, value.numel() / parameter.numel(), str(value.dtype)[6:])
        for key, value in optimizer.state[parameter].items()
        if isinstance(value, torch.Tensor) and value.numel() > 1
    )
    own = optimizer.param_groups[0] if name == "SGD" else {}
    return Optimizer(
        name, state, not any(word in name.lower() for word in MIXES_ELEMENTS),
        float(own.get("momentum", 0.0)), bool(own.get("nesterov", False)),
    )  # fmt: skip
