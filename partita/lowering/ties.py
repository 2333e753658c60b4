"""When the sums of buckets that several stages hold are taken: behind all others, by all holders in one order.

place              end    +1    +2    +3    +4    +5     `end` is where the compute lane ends
wire                Zc    Gc  G0 G1          Zd    Gd     c: this rank's stage is the first that comes to it
                                                         d: an earlier stage does, so what is this rank's alone goes on
with a bound        Zc    Zd     N    ..                 a bound on the norm waits for all sums, and updates wait for it
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from partita.program.instruction import Pack
from partita.program.program import Program

Holders = Mapping[str, frozenset[int]]  # of each bucket the stages that hold a parameter of it


@dataclass(frozen=True, slots=True)
class Ties:
    """Places behind the compute lane: `sums` of the tied buckets' sums, `gathers` of the gathers that follow these,
    `others` of all other gathers; a bound on the norm is agreed on at `bound`."""

    sums: Mapping[str, int]
    gathers: Mapping[str, int]
    others: int
    bound: int


def holders_of(program: Program) -> Holders:
    """The stages that hold a parameter of each bucket."""
    stages: dict[str, set[int]] = {}
    for number, stage in enumerate(program.stages):
        for parameter in stage.parameters:
            stages.setdefault(parameter.name, set()).add(number)
    return {
        bucket.name: frozenset(n for piece in bucket.pieces for n in stages.get(piece.parameter, ()))
        for bucket in program.buckets
    }


def ties_of(packs: Iterable[Pack], holders: Holders, end: int, *, bounded: bool) -> Ties:
    """The places of a rank that packs so, and whose compute lane ends at `end`.

    Buckets of later stages go first, since their backward passes end sooner. Places of other stages' lanes are not
    known here: what waits for them must not hold up what is this rank's alone.
    """
    stages: dict[str, int] = {}
    for act in packs:
        stages[act.bucket] = min(act.stage, stages.get(act.bucket, act.stage))
    tied = [bucket for bucket in stages if len(holders[bucket]) > 1]
    order = sorted(tied, key=lambda bucket: (-min(holders[bucket]), bucket))
    if bounded:
        bound = end + len(order)
        sums = {bucket: end + n for n, bucket in enumerate(order)}
        return Ties(sums, {bucket: place + 1 + len(order) for bucket, place in sums.items()}, bound + 1, bound)
    mine = next((n for n, bucket in enumerate(order) if stages[bucket] > min(holders[bucket])), len(order))
    sums = {bucket: end + 2 * (n + (n >= mine)) for n, bucket in enumerate(order)}
    others = end + 2 * max(mine - 1, 0) + 1
    return Ties(sums, {bucket: place + 1 for bucket, place in sums.items()}, others, end)
