"""What acts of several microbatches have in common: they do the same, each in its own environment."""

from __future__ import annotations

from collections.abc import Hashable

from partita.program.instruction import Act, Compute, Load, Pack, Receive, Send


def doing_of(act: Act) -> Hashable:
    """What an act does: equal for acts that differ only in their environment, in which samples these are, and in whom
    messages go to."""
    kind = type(act)
    if isinstance(act, Compute):
        return kind, act.segment
    if isinstance(act, Load):
        return kind, act.count, act.stage, act.fetch
    if isinstance(act, Pack):
        return kind, act.bucket, act.add, act.stage, act.space
    if isinstance(act, Send):
        return kind, act.bucket, act.space, act.keeps
    return (kind, act.bucket, act.space) if isinstance(act, Receive) else act
