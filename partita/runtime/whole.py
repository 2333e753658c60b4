"""A model that was captured as one operator each way: the task's own module and autograd, on a rank's weights and
samples.

load       env[WHOLE] = the rank's Whole, env[BATCH] = a collated batch
forward    loss, weight, new buffers, SavedForBackward = module(weights, buffers, batch)   builds autograd's graph
backward   gradients = autograd of SavedForBackward                                        which frees it
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.nn.utils import stateless

from partita.errors import TaskError
from partita.runtime.draws import DRAWS
from partita.runtime.generators import ALONE
from partita.runtime.neutral import neutral, reached
from partita.runtime.workload import Workload
from partita.task import Task
from partita.tracing.draws import KeyedDraws
from partita.tracing.hidden_inputs import seen_through
from partita.tracing.prepare import (
    Rest,
    build_model,
    check_gradient,
    check_unchanged,
    hooked,
    parted_leaves,
    split_loss,
    standing,
    untrained,
)
from partita.tracing.promote import Promoted

WHOLE: Final = "whole"
BATCH: Final = "batch"
Values = Sequence[torch.Tensor]


@dataclass
class Whole:
    """The module of a rank, called with the weights as arguments. `changed` are the buffers that it changes;
    `doubled`: it computes in fp64."""

    task: Task
    module: Any
    changed: tuple[str, ...]
    doubled: bool

    @classmethod
    def of(cls, work: Workload) -> Whole:
        """The Whole for the two operators of the graph. torch's random state is not changed."""
        precision = work.precision or work.task.precision
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(work.seed)
            module = build_model(work.task, precision)
        return cls(work.task, module, tuple(name for name, _ in work.graph.mutations), precision == "fp64")

    def given(self, leaves: Sequence[torch.Tensor], rest: Rest) -> dict[str, Any]:
        """What an environment holds for a forward pass on a batch."""
        return {WHOLE: self, BATCH: rest.batch(list(leaves))}


@dataclass
class SavedForBackward:
    """What a forward pass keeps for its backward pass."""

    loss: torch.Tensor
    weights: dict[str, torch.Tensor]
    draws: KeyedDraws | None
    doubled: bool

    @contextmanager
    def modes(self) -> Iterator[None]:
        """A context with autograd, double precision and keyed random numbers, as asked for."""
        with ExitStack() as stack:
            stack.enter_context(torch.enable_grad())
            if self.doubled:
                stack.enter_context(Promoted())
            if self.draws is not None:
                stack.enter_context(seen_through())
                stack.enter_context(self.draws)
            yield


def forward(
    env: dict[str, Any], parameters: Values, buffers: Values, inputs: Values, **counted: float
) -> tuple[Any, ...]:
    """The loss, its weight if it has one, the new values of buffers that change, and SavedForBackward; `counted` is for
    who prices the operator.

    Raises TaskError for a buffer or parameter that changes and did not when the step was captured.
    """
    whole: Whole = env[WHOLE]
    model, drawn, batch = whole.module, env[DRAWS], env.pop(BATCH)
    draws = None if drawn is None else KeyedDraws(drawn.seed, drawn.step, drawn.samples)
    own, others = parted_leaves(model, whole.changed)
    named = zip(own.items(), parameters, strict=True)
    weights = {n: hooked(given.data.requires_grad_(p.requires_grad), p) for (n, p), given in named}
    held = dict(zip(others, (buffer.data for buffer in buffers), strict=True))
    held |= {name: held[name].clone() for name in whole.changed}
    before = {name: standing(given) for name, given in weights.items()}
    kept = SavedForBackward(torch.empty(()), weights, draws, whole.doubled)
    with ALONE, kept.modes(), stateless._reparametrize_module(model, weights | held, tie_weights=True):
        kept.loss, weight = split_loss(whole.task, whole.task.loss(model, batch))
        after = untrained(model)
    moved = [name for name, given in weights.items() if standing(given) != before[name]]
    check_unchanged(name for name in moved if own[name].requires_grad)
    moved += [name for name, given in held.items() if given._version or after[name] is not given]
    for name in moved:
        if name not in whole.changed:
            kind = "parameter" if name in own else "buffer"
            raise TaskError(
                f"{kind} {name!r} changes now, and did not when the step was captured; let it change in every step"
            )
    made = [after[name].detach() for name in whole.changed]
    return (kept.loss.detach(), *([] if weight is None else [weight.detach()]), *made, kept)


def backward(
    env: dict[str, Any], kept: SavedForBackward, tangent: torch.Tensor, parameters: Values, buffers: Values,
    inputs: Values, **counted: float,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    """The gradient of every trained weight; `neutral` for a weight that this batch did not use."""
    with kept.modes():
        kept.loss.backward(tangent.to(kept.loss.dtype))  # type: ignore[no-untyped-call]
    trained = {name: weight for name, weight in kept.weights.items() if weight.requires_grad}
    for name, weight in trained.items():
        check_gradient(name, weight.grad)
    return tuple(neutral(weight) if weight.grad is None else reached(weight.grad) for weight in trained.values())


OPAQUE: Final[dict[str, Callable[..., Any]]] = {"partita.opaque_forward": forward, "partita.opaque_backward": backward}
