"""Stops a run at the first value that is not finite, before another rank or a checkpoint gets it.

The error names the rank and the first bad weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

import torch

from partita.errors import RunError
from partita.runtime.rank import Rank


def check_loss(rank: Rank, loss: torch.Tensor, step: int) -> None:
    """Raises RunError if the loss is not finite. Not called on accelerators, where the host would wait for the
    device."""
    if loss.device.type == "cpu" and not isfinite(loss.item()):
        raise RunError(
            f"the loss of step {step} is {float(loss)} on rank {rank.rank}; lower the rate, or look at its samples",
            rank=rank.rank, step=step,
        )  # fmt: skip


def all_finite(values: torch.Tensor) -> bool:
    """Whether a host's values are finite, by their sum; True on accelerators, where the host would wait."""
    return not values.is_cpu or isfinite(values.sum().item())


def check_update(rank: Rank, bucket: str, gradients: Sequence[torch.Tensor], step: int) -> None:
    """Raises RunError if an update with a rank's own `gradients` made weights that are not finite. It sums one
    bucket that is still in the cache; a sum for each gradient would cost a small model 2 % of its step."""
    if not all_finite(rank.state.parameter[bucket]):
        check_gradients(rank, bucket, gradients, step)
        bad = [
            p.parameter
            for p, w in zip(rank.program.bucket[bucket].pieces, rank.state.views[bucket], strict=True)
            if not w.isfinite().all()
        ]
        if bad:
            raise RunError(
                f"{bad[0]} is not finite after step {step} on rank {rank.rank}; lower the rate",
                rank=rank.rank,
                step=step,
            )


def check_gradients(rank: Rank, bucket: str, gradients: Sequence[torch.Tensor], step: int) -> None:
    """Raises RunError naming the first weight of a bucket whose gradient is not finite. They are in the order in
    which backward completes them, so it is the one closest to the cause."""
    if gradients and gradients[0].device.type == "cpu" and not isfinite(sum(g.sum().item() for g in gradients)):
        pieces = rank.program.bucket[bucket].pieces
        bad = [piece.parameter for piece, g in zip(pieces, gradients, strict=True) if not g.isfinite().all()]
        if bad:
            raise RunError(
                f"the gradient of {bad[0]} is not finite in step {step} on rank {rank.rank}; no other rank and no "
                "checkpoint has it: lower the rate, or look at that rank's samples and machine",
                rank=rank.rank, step=step,
            )  # fmt: skip
