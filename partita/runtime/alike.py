"""Which of a bucket's tensors all ranks have alike at the end of a round, read from the instructions."""

from __future__ import annotations

from collections.abc import Sequence

from partita.program.instruction import Act, Collective, Combine, Decode, Encode, Mix, Pack, Receive, Space, Update
from partita.program.program import Program


def alike(program: Program) -> dict[str, frozenset[Space]]:
    """Bucket -> its tensors that are the same everywhere: what a collective made the same, and what all ranks make of
    such alone. They are so at the start; the largest set that a round gives back is what stays."""
    acts: dict[str, list[Act]] = {bucket.name: [] for bucket in program.buckets}
    for _, instruction in program.instructions():
        if bucket := getattr(instruction.act, "bucket", ""):
            acts.get(bucket, []).append(instruction.act)
    found, joint = {}, products(program)
    for name, mine in acts.items():
        same = frozenset(Space)
        while (after := same & _after(mine, same, name in joint)) != same:
            same = after
        found[name] = same
    return found


def products(program: Program) -> frozenset[str]:
    """Buckets of which all ranks pack the products of everybody's factors: those of graphs without a forward pass."""
    packs = [i.act for _, i in program.instructions() if isinstance(i.act, Pack) and i.act.stage >= 0]
    return frozenset(act.bucket for act in packs if not program.stages[act.stage].forward_length)


def _after(acts: Sequence[Act], before: frozenset[Space], joint: bool) -> frozenset[Space]:
    same = set(before)

    def put(space: Space, equal: bool) -> None:
        (same.add if equal else same.discard)(space)

    for act in acts:
        if isinstance(act, Collective):
            put(act.space, True)
        elif isinstance(act, Encode):
            for space in (act.held, *act.clears):
                put(space, False)
        elif isinstance(act, Combine) or (isinstance(act, Decode) and act.into is Space.GRADIENT):
            put(Space.GRADIENT, True)
        elif isinstance(act, Pack):
            put(act.space, joint)
        elif isinstance(act, Receive):
            put(act.space, False)
        elif isinstance(act, Update):
            put(Space.PARAMETER, not act.part and {Space.GRADIENT, Space.PARAMETER} <= same)
        elif isinstance(act, Mix):
            put(act.into, all(t.space in same and not t.peer and len(t.factor) == 1 for t in act.terms))
    return frozenset(same)
