"""Stops a run at the first value that is not finite, before another rank or a checkpoint gets it.

The error names the rank and the first bad weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite, isnan
from typing import Final

import torch

from partita.errors import RunError
from partita.plan.wire import Codec
from partita.program.instruction import Load
from partita.program.space import Space
from partita.runtime.rank import Rank
from partita.runtime.state import shaped
from partita.wire.codec import message_dtype

SHORT: Final = ("float16", "bfloat16")
NOTHING: Final = (
    ", which are a part of a minibatch: where nothing in a part may count (all labels ignored), a mean over it is nan, "
    "so let Task.loss return (sum, weight)"
)


def check_loss(rank: Rank, loss: torch.Tensor, step: int) -> None:
    """Raises RunError if the loss is not finite. Not called on accelerators, where the host would wait for the
    device."""
    if loss.device.type == "cpu" and not isfinite(loss.item()):
        raise RunError(
            f"the loss of step {step} is {float(loss)} on rank {rank.rank}; lower the rate, or look at its samples"
            + (NOTHING if isnan(loss.item()) and _weighs_nothing(rank) else ""),
            rank=rank.rank, step=step,
        )  # fmt: skip


def _weighs_nothing(rank: Rank) -> bool:
    """Whether its loss may be a mean over nothing: a plain mean of a part of a minibatch."""
    loads = rank.role.acts(Load)
    return rank.graph.weight is None and any(act.count < rank.program.batch for act in loads)


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


def check_outgoing(rank: Rank, bucket: str, space: Space, round: int) -> None:
    """Raises RunError where a rank's gradient of a bucket, or a change made of it, which others are about to get as it
    is or encoded, is not finite: a codec may leave out what is no number, or say something else for it. A scaled loss
    looks for itself."""
    outgoing = space in (Space.GRADIENT, Space.VELOCITY, Space.DELTA)
    if not outgoing or rank.program.scaling or not rank.program.bucket[bucket].pieces:
        return
    flat = rank.state.flat(space, bucket, rank.slot(round))
    if not all_finite(flat):
        check_gradients(rank, bucket, shaped(flat, rank.state.whole(bucket)), rank.step(round, 0))


def check_decoded(rank: Rank, codec: Codec, bucket: str, values: torch.Tensor, step: int) -> None:
    """Raises RunError where finite numbers of a bucket, or their sum, were none in messages of half precision: what
    came of them, before any rank steps by it. A scaled loss looks for itself."""
    short = message_dtype(codec)
    if short in SHORT and not rank.program.scaling and not all_finite(values) and not values.isfinite().all():
        raise RunError(
            f"what the codec {codec.name} makes of {rank.program.bucket[bucket].pieces[0].parameter} and others is not "
            f"finite in step {step} on rank {rank.rank}: {torch.finfo(getattr(torch, short)).max:.6g} is the largest "
            "number that it has, also for sums; use a codec with more room, or a smaller loss",
            rank=rank.rank, step=step,
        )  # fmt: skip


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
