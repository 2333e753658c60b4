"""The loss of a batch for its own sake, of which nothing is kept for a backward pass."""

from __future__ import annotations

from typing import Any, Final

import torch

from partita.task import Task

TAKES_GRADIENTS: Final = "does not require grad"  # in what autograd says of a gradient asked for where it keeps none


def loss_alone(task: Task, model: Any, batch: Any) -> Any:
    """What the task's loss returns, detached. A loss that takes gradients itself (a gradient penalty, forces of an
    energy) fails where autograd keeps nothing, and is computed again with what it keeps."""
    try:
        with torch.no_grad():
            return task.loss(model, batch)
    except RuntimeError as error:
        if TAKES_GRADIENTS not in str(error):
            raise
    with torch.enable_grad():
        value = task.loss(model, batch)
    parts = value if isinstance(value, tuple) else (value,)
    detached = tuple(part.detach() if isinstance(part, torch.Tensor) else part for part in parts)
    return detached if isinstance(value, tuple) else detached[0]
