"""Linear rules over the tensors of a bucket."""

from __future__ import annotations

import torch

from partita.program.instruction import Mix, Space, Term
from partita.runtime.rank import Rank


def mix(rank: Rank, act: Mix, name: str, round: int) -> None:
    """In place, and without copies: what `into` held counts first, the others are added in their order."""
    if round < act.lag:
        return
    slot = rank.slot(round - act.lag)
    own = [term for term in act.terms if term.space is act.into and not term.peer]
    others = [term for term in act.terms if term not in own]
    out = rank.state.flat(act.into, act.bucket, slot)
    for i, term in enumerate([*own, *others]):
        factor = rank.role.mine(term.factor, rank.rank)
        if i:
            out.add_(_termed(rank, act.bucket, term, slot), alpha=factor)
        elif term.space is not act.into or factor != 1.0:
            torch.mul(_termed(rank, act.bucket, term, slot), factor, out=out)


def _termed(rank: Rank, bucket: str, term: Term, slot: int) -> torch.Tensor:
    if term.space is Space.INBOX:
        return rank.state.inbox_of(bucket, rank.role.mine(term.peer, rank.rank))
    return rank.state.flat(term.space, bucket, slot)
