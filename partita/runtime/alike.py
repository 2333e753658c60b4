"""Which tensors of a bucket are equal on all ranks at the end of a round, derived from the instructions."""

from __future__ import annotations

from collections.abc import Sequence

from partita.program.instruction import Act, Collective, Combine, Decode, Encode, Mix, Pack, Receive, Update
from partita.program.program import Program
from partita.program.space import Space


def alike(program: Program) -> dict[str, frozenset[Space]]:
    """Bucket -> its tensors (Space) that are equal on all ranks that have them: results of collectives, and what all
    ranks compute from such tensors in the same way. All are equal at the start; a set that a round preserves is equal
    at the end of every round."""
    acts: dict[str, list[Act]] = {bucket.name: [] for bucket in program.buckets}
    for _, instruction in program.instructions():
        if bucket := getattr(instruction.act, "bucket", ""):
            coding = program.coding.get(bucket)
            acts.get(coding.bucket if coding else bucket, []).append(instruction.act)
    found, joint, own = {}, products(program), _own_codings(program)
    for name, mine in acts.items():
        same = frozenset(Space)
        while (after := same & _after(mine, same, name in joint, own)) != same:
            same = after
        found[name] = same
    return found


def products(program: Program) -> frozenset[str]:
    """The buckets for which every rank packs the products of all factors: those of graphs without a forward pass."""
    packs = [act for act in program.acts(Pack) if act.stage >= 0]
    return frozenset(act.bucket for act in packs if not program.stages[act.stage].forward_length)


def _own_codings(program: Program) -> frozenset[str]:
    """The codings of which several ranks make one each; any other is a server's, that all others get."""
    makers: dict[str, set[int]] = {}
    for role in program.roles:
        for act in role.acts(Encode):
            makers.setdefault(act.coding, set()).update(role.ranks)
    return frozenset(name for name, ranks in makers.items() if len(ranks) > 1)


def _after(acts: Sequence[Act], before: frozenset[Space], joint: bool, own: frozenset[str]) -> frozenset[Space]:
    same, apart = set(before), set[str]()
    for act in acts:
        if isinstance(act, Encode):
            same.difference_update((act.held, *act.clears))
            apart |= {act.coding} & own
        elif isinstance(act, Collective | Receive) and act.space is Space.CODED:
            apart -= {act.bucket}
        elif isinstance(act, Decode) and not act.sources and act.coding in apart:
            same.discard(act.into)
        elif (found := _left(act, same, joint)) is not None:
            space, equal = found
            (same.add if equal else same.discard)(space)
    return frozenset(same)


def sums_into(act: Combine | Decode) -> Space | None:
    """The space in which an act makes one of what all have; None for one peer's in an inbox."""
    into = Space.GRADIENT if isinstance(act, Combine) else act.into
    return into if into is not Space.INBOX else None


def _left(act: Act, same: set[Space], joint: bool) -> tuple[Space, bool] | None:
    """The space that an act writes, and whether it is alike then; None if it writes none."""
    if isinstance(act, Collective):
        return act.space, True
    if isinstance(act, Combine | Decode):
        return (space, True) if (space := sums_into(act)) else None
    if isinstance(act, Pack):
        return act.space, joint
    if isinstance(act, Receive):
        return act.space, False
    if isinstance(act, Update):
        return Space.PARAMETER, not act.part and {Space.GRADIENT, Space.PARAMETER} <= same
    if isinstance(act, Mix):
        return act.into, all(t.space in same and not t.peer and len(t.factor) == 1 for t in act.terms)
    return None
