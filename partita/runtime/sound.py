"""Numbers that are none: found before they reach another rank or an update, with the rank and the first bad weight."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from partita.errors import RunError
from partita.runtime.rank import Rank


def check_loss(rank: Rank, loss: torch.Tensor, step: int) -> None:
    """Raises RunError where the loss is not finite. Not on accelerators, which would wait for each other's ends."""
    if loss.device.type == "cpu" and not loss.isfinite():
        raise RunError(
            f"the loss of step {step} is {float(loss)} on rank {rank.rank}; lower the rate, or look at its samples",
            rank=rank.rank, step=step,
        )  # fmt: skip


def check_gradients(rank: Rank, bucket: str, gradients: Sequence[torch.Tensor], step: int) -> None:
    """Raises RunError naming the first of a bucket's weights whose gradient is not finite: they stand in the order in
    which backward completes them, so it is the one nearest to where that came from."""
    if (
        gradients
        and gradients[0].device.type == "cpu"
        and not torch.stack([g.sum() for g in gradients]).isfinite().all()
    ):
        pieces = rank.program.bucket[bucket].pieces
        bad = [piece.parameter for piece, g in zip(pieces, gradients, strict=True) if not g.isfinite().all()]
        if bad:
            raise RunError(
                f"the gradient of {bad[0]} is not finite in step {step} on rank {rank.rank}; nothing was updated with "
                "it: lower the rate, or look at that rank's samples and machine",
                rank=rank.rank, step=step,
            )  # fmt: skip
