"""`partita::ctc_loss` and its backward: the loss of connectionist temporal classification (Graves et al., 2006) as one
operator, whose sizes follow from its arguments' sizes. torch's own keeps as many places as the longest target of a
batch has, which nobody knows before there is one.

Importing this file registers them with torch.

    forward   log-probabilities (T, N, C), targets (N, S), lengths (N) each  ->  loss (N), alphas (N, T, 2 S + 1)
    backward  gradient of loss, all of these, loss, alphas                   ->  gradient of log-probabilities
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor, library
from torch.nn import functional

NAME: Final = "ctc_loss"
READ: Final = "Tensor log_probs, Tensor targets, Tensor input_lengths, Tensor target_lengths"
TOLD: Final = "int blank, bool zero_infinity"
REDUCTIONS: Final = {"none": 0, "mean": 1, "sum": 2}
Lengths = Tensor | tuple[int, ...] | list[int]


def ctc_loss(
    eager: Any, log_probs: Tensor, targets: Tensor, input_lengths: Lengths, target_lengths: Lengths, blank: int = 0,
    reduction: str | int = "mean", zero_infinity: bool = False,
) -> Tensor:  # fmt: skip
    """torch's, with that operator where samples are a dimension of the targets; `eager` elsewhere."""
    several = log_probs.dim() == 3 and targets.dim() == 2
    lengths = [_tensor(given, targets) for given in (input_lengths, target_lengths)] if several else []
    if not several or any(length is None for length in lengths):
        made: Tensor = eager(log_probs, targets, input_lengths, target_lengths, blank, reduction, zero_infinity)
        return made
    losses: Tensor = getattr(torch.ops.partita, NAME)(log_probs, targets, *lengths, blank, zero_infinity)[0]
    if zero_infinity:
        losses = torch.where(losses == float("inf"), 0.0, losses)
    how = REDUCTIONS.get(reduction, 0) if isinstance(reduction, str) else reduction
    if how == REDUCTIONS["mean"]:
        assert lengths[1] is not None
        return (losses / lengths[1].clamp_min(1).to(losses.dtype)).mean()
    return losses.sum() if how == REDUCTIONS["sum"] else losses


def _tensor(lengths: Lengths, targets: Tensor) -> Tensor | None:
    """Lengths as a tensor; None for numbers that differ from sample to sample."""
    if isinstance(lengths, Tensor):
        return lengths
    return targets.new_full((len(targets),), lengths[0]) if len(set(lengths)) == 1 else None


def _eager(
    log_probs: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor, blank: int, zero_infinity: bool
) -> tuple[Tensor, Tensor]:
    lengths = input_lengths.tolist(), target_lengths.tolist()
    losses, alphas = torch._ctc_loss(log_probs, targets, *lengths, blank, zero_infinity)
    return losses, functional.pad(alphas, (0, 2 * targets.shape[1] + 1 - alphas.shape[2]))


def _eager_backward(
    d_losses: Tensor, log_probs: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor,
    losses: Tensor, alphas: Tensor, blank: int, zero_infinity: bool,
) -> Tensor:  # fmt: skip
    lengths = input_lengths.tolist(), target_lengths.tolist()
    alphas = alphas[..., : 2 * max(lengths[1], default=0) + 1].contiguous()
    back = torch.ops.aten._ctc_loss_backward.default
    made: Tensor = back(d_losses, log_probs, targets, *lengths, losses, alphas, blank, zero_infinity)
    return made.contiguous()


def _shapes(log_probs: Tensor, targets: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    times, samples, _classes = log_probs.shape
    return log_probs.new_empty(samples), log_probs.new_empty(samples, times, 2 * targets.shape[1] + 1)


def _save(ctx: Any, inputs: Any, output: Any) -> None:
    *read, ctx.blank, ctx.zero_infinity = inputs
    ctx.save_for_backward(*read, *output)


def _differentiate(ctx: Any, d_losses: Tensor, _: Tensor) -> Any:
    back = getattr(torch.ops.partita, f"{NAME}_backward")
    return back(d_losses, *ctx.saved_tensors, ctx.blank, ctx.zero_infinity), None, None, None, None, None


def _register() -> None:
    made = library.custom_op(
        f"partita::{NAME}", _eager, mutates_args=(), schema=f"({READ}, {TOLD}) -> (Tensor, Tensor)"
    )
    made.register_fake(_shapes)
    made.register_autograd(_differentiate, setup_context=_save)
    back = library.custom_op(
        f"partita::{NAME}_backward", _eager_backward, mutates_args=(),
        schema=f"(Tensor d_losses, {READ}, Tensor losses, Tensor alphas, {TOLD}) -> Tensor",
    )  # fmt: skip
    back.register_fake(lambda _, log_probs, *__: torch.empty_like(log_probs, memory_format=torch.contiguous_format))


_register()
