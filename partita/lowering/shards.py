"""State divided over the ranks that agree on it (ZeRO): a pass over a Program that sums gradients by all-reduces.

optimizer    compute   F0 F1 B0 P0 B1 P1            | F of the next round, each part after the G of what it reads
             wire               Z0--- Z1--- G1-- G0-- Z: sums scattered to their owners; G: new weights gathered
             update                  U0    U1         each owner its part
gradients    shard                 K0    K1           K keeps the owner's part of Z and gives the rest back; it does
                                                      so before the Pack after next, so two buckets are there at most
parameters   compute   F0 X1 F1 X0 B0 P0 X0 B1 P1 X1  X gives a bucket back after its last reader
             wire    G1 G0        G0 G1 Z0 Z1         gathered for each pass, `ahead` buckets before their turn

Each bucket has its even parts, so a round sends (N-1)/N of the gradients and as much of the weights for each gather. A
bucket that several stages hold keeps its whole. Rules that mix elements get whole buckets, spread over the owners.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from partita.graph.graph import Graph
from partita.lowering.coding import of_parts
from partita.lowering.divided import divided
from partita.lowering.norm import SQUARES
from partita.lowering.ties import Holders, holders_of
from partita.plan.memory import Memory, Shard
from partita.plan.plan import Plan
from partita.program.instruction import Collective
from partita.program.layout import NORM, Bucket, Shares, even
from partita.program.program import Program
from partita.program.space import Space

Groups = tuple[tuple[int, ...], ...]
WHOLE: Final = {
    Shard.OPTIMIZER: (Space.PARAMETER, Space.GRADIENT),
    Shard.GRADIENTS: (Space.PARAMETER,),
    Shard.PARAMETERS: (),
}


def unsliced(plan: Plan) -> Plan:
    """The plan as it is lowered where state is divided: its parts take the place of slices."""
    if plan.memory.shard is Shard.NONE:
        return plan
    return replace(plan, sync=tuple(replace(one, wire=replace(one.wire, slice_bytes=0)) for one in plan.sync))


def sharded(program: Program, graph: Graph, memory: Memory) -> Program:
    """The program with the state of what it all-reduces divided as `memory` says."""
    agreed = {} if memory.shard is Shard.NONE else _agreed(program)
    if not agreed:
        return program
    holders = holders_of(program)
    buckets = _owned(program, graph, memory, agreed, holders)
    owned = replace(program, buckets=buckets)
    roles = tuple(divided(owned, graph, memory, role, holders) for role in program.roles)
    named = {act.bucket for role in roles for act in role.acts(Collective)}
    kept = tuple(b for b in buckets if b.name != NORM) + ((SQUARES,) if NORM in named else ())
    codings = tuple(of_parts(coding, owned.bucket[coding.bucket]) for coding in program.codings)
    return replace(program, roles=roles, buckets=kept, codings=codings)


def _agreed(program: Program) -> dict[str, Groups]:
    """Each bucket whose gradient is summed up, as it is or encoded, and by whom."""
    acts = program.acts(Collective)
    coded = {program.coding[act.bucket].bucket: act.groups for act in acts if act.space is Space.CODED}
    plain = {
        act.bucket: act.groups for act in acts if act.space is Space.GRADIENT and program.bucket[act.bucket].pieces
    }
    return plain | coded


def _owned(
    program: Program, graph: Graph, memory: Memory, agreed: dict[str, Groups], holders: Holders
) -> tuple[Bucket, ...]:
    """The buckets; those that are agreed on in even parts or, where rules mix elements, each with one owner, who is the
    one with the fewest bytes so far."""
    buckets, load = list[Bucket](), [0] * max(len(group) for groups in agreed.values() for group in groups)
    for bucket in program.buckets:
        if groups := agreed.get(bucket.name):
            size = len(groups[0])
            edges = even(bucket.elements, size)
            if not graph.optimizer.elementwise:
                owner = min(range(size), key=load.__getitem__)
                load[owner] += bucket.size
                edges = (0,) * (owner + 1) + (bucket.elements,) * (size - owner)
            whole = WHOLE[memory.shard if len(holders[bucket.name]) < 2 else Shard.OPTIMIZER]
            bucket = replace(bucket, shares=Shares(groups, edges, whole))
        buckets.append(bucket)
    return tuple(buckets)
