"""Norms of gradients, and the bound on them."""

from __future__ import annotations

import torch

from partita.program.instruction import Clip, Norm
from partita.program.layout import NORM
from partita.program.scaling import MARGIN
from partita.program.space import Space
from partita.runtime.rank import Rank
from partita.runtime.scaler import norm_of
from partita.runtime.segment import key


def norm(rank: Rank, act: Norm, name: str, round: int) -> None:
    """Sum the squared norms of the gradients of some buckets into the bucket NORM."""
    if round < act.lag:
        return
    slot = rank.slot(round - act.lag)
    squares = [norm_of([rank.state.mine(Space.GRADIENT, bucket, slot)]).double() ** 2 for bucket in act.buckets]
    rank.state.gradient[NORM][slot][0] = sum(s * square for s, square in zip(act.shares, squares, strict=True))


def clip(rank: Rank, act: Clip, name: str, round: int) -> None:
    """Scale every gradient so that their common norm is at most `norm` (torch's clip_grad_norm_); in half precision
    when they are converted to the master's dtype."""
    if rank.state.scaler:
        total = 0.0 if round < act.lag else float(_norm(rank, act, round))
        rank.state.scaler.bound(total, act.norm, round, act.lag, rank.rank)
        return
    if round < act.lag:
        return
    factor, gradients = bounding(_norm(rank, act, round), act.norm), _scaled(rank, act, round)
    if act.part:  # not in place: gradients may be views of each other
        rank.environments[round, act.part] |= {name: gradient * factor for name, gradient in dict(gradients).items()}
    elif gradients:  # a rank may know the norm and have none
        torch._foreach_mul_([gradient for _, gradient in gradients], factor)


def _norm(rank: Rank, act: Clip, round: int) -> torch.Tensor:
    """The common norm of the gradients that a Clip scales, over all ranks if these have summed it into a bucket."""
    if act.by:
        return rank.state.gradient[act.by][rank.slot(round - act.lag)][0].sqrt()
    return norm_of([gradient for _, gradient in _scaled(rank, act, round)])


def _scaled(rank: Rank, act: Clip, round: int) -> list[tuple[str, torch.Tensor]]:
    """(name, gradient) of all that a Clip scales: a bucket's, or a parameter's where backward left it; parameters may
    share a value, which then counts for each of them."""
    if not act.part:
        slot = rank.slot(round - act.lag)
        return [(bucket, rank.state.mine(Space.GRADIENT, bucket, slot)) for bucket in act.buckets]
    environment, wanted = rank.environments[round, act.part], dict(rank.graph_of(-1).gradients)
    parameters = dict.fromkeys(q.parameter for bucket in act.buckets for q in rank.program.bucket[bucket].pieces)
    return [(name, environment[name]) for name in (key(wanted[parameter]) for parameter in parameters)]


def bounding(total: torch.Tensor, norm: float) -> torch.Tensor:
    """The factor, at most 1, that brings the norm `total` down to `norm`; it stays on the device."""
    return torch.clamp(norm / (total + MARGIN), max=1.0)
