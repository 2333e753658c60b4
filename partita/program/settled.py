"""What a round does, before it does anything else with it, to what earlier rounds have left in flight.

round 7   U1 F0 ... U0 F1 B0 P0 ...     U1 and U0 apply the gradients of round 6: once they are done, and nothing else
                                        of round 7, the weights are those that its forward passes will read
"""

from __future__ import annotations

from partita.program.instruction import Act, Compute, Mix, Update
from partita.program.program import Policy, Role
from partita.program.space import Space

Places = frozenset[tuple[Space, str]]


def settling(role: Role) -> frozenset[str]:
    """The instructions with a lag, if their turn of the next round may come at once, as nothing that it does before
    them reads or writes what they do; else none. An update of a bucket precedes whatever reads that."""
    found = set[str]()
    orderly = {lane.name for lane in role.lanes if lane.policy is Policy.ORDER}
    before, computed = set[tuple[Space, str]](), False
    for instruction in role.instructions:
        act = instruction.act
        if not instruction.lag:
            before |= _places(act)
            computed |= isinstance(act, Compute)
            continue
        touched = _places(act) if isinstance(act, Mix) else frozenset()
        read = computed and any(space is Space.PARAMETER for space, _ in touched)
        if read or touched & before or instruction.lane not in orderly:
            return frozenset()
        found.add(instruction.name)
    return frozenset(found)


def _places(act: Act) -> Places:
    """The tensors of buckets that an act reads or writes."""
    if isinstance(act, Mix):
        return frozenset((space, act.bucket) for space in (act.into, *(term.space for term in act.terms)))
    if isinstance(act, Update):
        return frozenset({(Space.PARAMETER, act.bucket), (Space.GRADIENT, act.bucket)})
    bucket, space = getattr(act, "bucket", ""), getattr(act, "space", Space.GRADIENT)
    return frozenset({(space, bucket)}) if bucket else frozenset()
