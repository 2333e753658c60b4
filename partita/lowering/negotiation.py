"""Who sums what next, agreed on: a pass over roles that all-reduce gradients.

Ranks pack buckets at different times, and a collective that only some have started holds them up for ever where others
have started another one. So the first rank, which hears from all what is packed, decides what goes next, and says so:

first   P0 ..                 A0----                        others   P0  N0-- as packed           A0----
hear w       H0 when all      | T0 decides, one at a time   told               G0 in any order
decide          T0------------|    or within a credit
tell w             G0--                                     N, H, G are words: messages of one number

priority, credit   of what all have packed the bucket that forward reads first goes next (ByteScheduler); without, the
                   one that was complete first (Horovod). The first rank gives credit back when a sum is there.

A collective is matched by its name, so a rank may take it whenever it is told. What the first rank has in flight others
take as well, whatever the order: all but one of them leave room for the next, so the last one is taken by everybody.
"""

from __future__ import annotations

from dataclasses import replace

from partita.lowering.norm import WORDS
from partita.lowering.samples import Draft
from partita.plan.sync import AllReduce, Sync
from partita.plan.wire import Priority
from partita.program.instruction import After, Collective, Instruction, Mark, Receive, Send
from partita.program.layout import WORD
from partita.program.program import Lane, Policy, Program, Role
from partita.program.space import Space
from partita.wire.algorithms import BACKEND


def negotiates(sync: Sync) -> bool:
    """Whether ranks agree on what they sum next."""
    wire = sync.wire
    return isinstance(sync.through, AllReduce) and (wire.negotiate or wire.order is Priority.CREDIT)


def negotiated(program: Program, draft: Draft, places: dict[str, int]) -> Program:
    """The program, whose first rank has a role of its own, with its sums agreed on; `places` is the urgency of each
    bucket."""
    roles = tuple(_role(draft, role, places) for role in program.roles)
    return replace(program, roles=roles, buckets=(*program.buckets, WORDS))


def _role(draft: Draft, role: Role, places: dict[str, int]) -> Role:
    leader, body, wire = draft.workers[0], list[Instruction](), draft.sync.wire
    peers = [rank for rank in draft.workers if rank != leader] if leader in role.ranks else []
    for one in role.instructions:
        if not isinstance(one.act, Collective):
            body.append(one)
            continue
        label, act = one.name.removeprefix("A"), one.act
        place = 0 if wire.order is Priority.FIFO else places.get(act.bucket, -1)
        if peers:
            body += _led(label, act.bucket, one.after, peers, place)
            ready = After(f"T{label}")
        else:
            body.append(Instruction(f"N{label}", said(leader, f"{act.bucket}.ready"), "ready", one.after))
            body.append(Instruction(f"G{label}", heard(leader, f"{act.bucket}.go"), "told"))
            ready = After(f"G{label}")
        algorithm = "ring" if act.algorithm == BACKEND else act.algorithm
        body.append(replace(one, act=replace(act, algorithm=algorithm), lane="wire", after=(*one.after, ready)))
    lanes = [lane for lane in role.lanes if lane.name in ("compute", "data")]
    for name in dict.fromkeys(i.lane for i in body if i.lane not in ("compute", "data")):
        credit = wire.credit_bytes if name in ("wire", "decide") else 0
        lanes.append(Lane(name, _policy(name), credit))
    name = f"{role.name}-first" if leader in role.ranks else role.name
    return replace(role, name=name, instructions=tuple(body), lanes=tuple(lanes))


def _policy(lane: str) -> Policy:
    """Each rank says that buckets are packed in the order in which it packs them; what is told comes in any order."""
    if lane == "ready" or lane.startswith("hear"):
        return Policy.ORDER
    return Policy.PRIORITY if lane == "decide" else Policy.ARRIVAL


def _led(label: str, bucket: str, packed: tuple[After, ...], peers: list[int], place: int) -> list[Instruction]:
    """What the first rank does for a bucket: hear of it from all, decide, tell all."""
    hears = [Instruction(f"H{label}.{w}", heard(w, f"{bucket}.ready"), f"hear{w}") for w in peers]
    waits = (*packed, *(After(one.name) for one in hears))
    told = [Instruction(f"G{label}.{w}", said(w, f"{bucket}.go"), f"tell{w}", (After(f"T{label}"),)) for w in peers]
    return [*hears, Instruction(f"T{label}", Mark(), "decide", waits, priority=place, until=f"A{label}"), *told]


def said(rank: int, key: str) -> Send:
    """A word, which is any tensor of one number."""
    return Send(WORD, (rank,), key, Space.PARAMETER)


def heard(rank: int, key: str) -> Receive:
    """What another rank said."""
    return Receive(WORD, (rank,), key, Space.INBOX)
