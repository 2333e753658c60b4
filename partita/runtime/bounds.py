"""Norms of gradients, and the bound on them."""

from __future__ import annotations

import torch

from partita.program.instruction import Clip, Norm, Space
from partita.program.program import NORM
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
        rank.state.scaler.bound(_norm(rank, act, round), act.norm, round, act.lag, rank.rank)
        return
    if round < act.lag:
        return
    if act.by:
        slot = rank.slot(round - act.lag)
        factor = bounding(rank.state.gradient[act.by][slot][0].sqrt(), act.norm)
        for bucket in act.buckets:
            rank.state.mine(Space.GRADIENT, bucket, slot).mul_(factor)
    elif act.part:
        environment, wanted = rank.environments[round, act.part], dict(rank.graph.gradients)
        pieces = dict.fromkeys(q.parameter for b in act.buckets for q in rank.program.bucket[b].pieces)
        found = [key(wanted[parameter]) for parameter in pieces]
        factor = bound_factor([environment[name] for name in found], act.norm)
        for name in dict.fromkeys(found):  # not in place: gradients may be views of each other
            environment[name] = environment[name] * factor
    else:
        flats = [rank.state.mine(Space.GRADIENT, bucket, rank.slot(round - act.lag)) for bucket in act.buckets]
        torch._foreach_mul_(flats, bound_factor(flats, act.norm))


def _norm(rank: Rank, act: Clip, round: int) -> float:
    """The common norm of the gradients that a Clip scales."""
    slot = rank.slot(round - act.lag)
    if round < act.lag:
        return 0.0
    if act.by:
        return float(rank.state.gradient[act.by][slot][0].sqrt())
    if act.part:
        wanted, pieces = dict(rank.graph_of(-1).gradients), [rank.program.bucket[b].pieces for b in act.buckets]
        names = dict.fromkeys(key(wanted[piece.parameter]) for each in pieces for piece in each)
        return float(norm_of([rank.environments[round, act.part][name] for name in names]))
    return float(norm_of([rank.state.mine(Space.GRADIENT, bucket, slot) for bucket in act.buckets]))


def bound_factor(gradients: list[torch.Tensor], norm: float) -> torch.Tensor:
    """The factor, at most 1, that brings the common norm of all gradients down to `norm`."""
    return bounding(norm_of(gradients), norm)


def bounding(total: torch.Tensor, norm: float) -> torch.Tensor:
    """The factor, at most 1, that brings the norm `total` down to `norm`."""
    return torch.clamp(norm / (total + 1e-6), max=1.0)
