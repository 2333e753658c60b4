"""The act Mix: linear combinations of the tensors of a bucket."""

from __future__ import annotations

from dataclasses import replace

import torch

from partita.program.instruction import Mix, Receive, Term
from partita.program.space import Space
from partita.runtime.rank import Rank


def mix(rank: Rank, act: Mix, name: str, round: int) -> None:
    """Computed in place and without copies: first the term of `into` itself, then the others in their order."""
    if round < act.lag:
        return
    slot = rank.slot(round - act.lag)
    terms = _there(rank, act, name, round) if rank.spare else act.terms
    own = [term for term in terms if term.space is act.into and not term.peer]
    others = [term for term in terms if term not in own]
    out = rank.state.flat(act.into, act.bucket, slot)
    for i, term in enumerate([*own, *others]):
        factor = rank.role.mine(term.factor, rank.rank)
        if i:
            out.add_(_termed(rank, act.bucket, term, slot), alpha=factor)
        elif term.space is not act.into or factor != 1.0:
            torch.mul(_termed(rank, act.bucket, term, slot), factor, out=out)


def _there(rank: Rank, act: Mix, name: str, round: int) -> tuple[Term, ...]:
    """The terms of those peers whose message came; the factors of the others are added to the rank's own."""
    known, left = rank.role.on_name, set[int]()
    for after in known[name].after:
        came = known[after.name].act
        if isinstance(came, Receive) and rank.board.lacks(after, round):
            left.add(rank.role.mine(came.source, rank.rank))
    gone = [term for term in act.terms if term.space is Space.INBOX and rank.role.mine(term.peer, rank.rank) in left]
    more = sum(rank.role.mine(term.factor, rank.rank) for term in gone)
    kept = [term for term in act.terms if term not in gone]
    own = next((k for k, term in enumerate(kept) if term.space is act.into and not term.peer), -1)
    if gone and own >= 0:
        kept[own] = replace(kept[own], factor=(rank.role.mine(kept[own].factor, rank.rank) + more,))
    return tuple(kept)


def _termed(rank: Rank, bucket: str, term: Term, slot: int) -> torch.Tensor:
    if term.space is Space.INBOX:
        return rank.state.inbox_of(bucket, rank.role.mine(term.peer, rank.rank))
    return rank.state.flat(term.space, bucket, slot)
