"""A master that goes on once some of its workers have come, none of them later than so many times (DP-20).

worker  compute  own steps  D0 D1 ......... X0 X1 |    D: its minimum less the centre that it was sought from, which is
        push                   S0 S1                   by how much what it says of the consensus has changed
        pull                         R0 R1             X: the multipliers, with the centre that came
server  from w               I0 I1
        serve                     A U0 U1 Q V0 V1      A: all of a worker's is there; U: it enters the mean; Q: a gate
        to w                               D0 D1       opens for `need` workers, none left out too often; V: whom it
                                                       opened for is answered before anybody else's U

Asynchronous consensus ADMM as by Zhang & Kwok (ICML 2014): workers that have not come keep their place in the mean.
"""

from __future__ import annotations

from collections.abc import Iterable

from partita.lowering.elastic import MINUS, multiplier_step, own_steps
from partita.lowering.samples import Draft, ReplicaGroup
from partita.plan.sync import Payload, Sync
from partita.program.gate import Gate
from partita.program.instruction import After, Apply, Instruction, Mark, Mix, Receive, Send, Snapshot, Term
from partita.program.space import Space


def counted(sync: Sync) -> bool:
    """Whether such a master answers: what its workers say is kept until they say something else."""
    return sync.payload is Payload.DUAL


def in_consensus(draft: Draft, group: ReplicaGroup, owners: tuple[int, ...]) -> list[Instruction]:
    """A worker's round: `period` steps on the augmented Lagrangian, what has changed of x + multiplier / penalty, and
    the multipliers with the new centre. As these moved by penalty (x - centre), the change is x - centre."""
    rho, body = draft.sync.outer.penalty, own_steps(draft, group, sum(draft.pushes))
    x, z, ends = Term(Space.PARAMETER), Term(Space.ANCHOR, MINUS), list[Instruction]()
    for i, bucket in enumerate(draft.buckets):
        name, host = bucket.name, owners[i]
        up, down = Send(name, (host,), f"{name}.up", Space.DELTA), f"{name}.down"
        body += [
            Instruction(f"D{i}", Mix(name, Space.DELTA, (x, z)), "compute", (After(f"S{i}", 1),)),
            Instruction(f"S{i}", up, f"push{host}", (After(f"D{i}"),)),
            Instruction(f"R{i}", Receive(name, (host,), down, Space.ANCHOR), f"pull{host}", (After(f"D{i}"),)),
        ]
        ends += multiplier_step(i, name, rho, After(f"R{i}"), After(f"S{i}"))
    return body + ends


def master_of(draft: Draft, mine: Iterable[int]) -> list[Instruction]:
    """What the master does with its buckets."""
    workers, consistency, body = draft.workers, draft.sync.consistency, list[Instruction]()
    company = Gate("quorum", consistency.need, consistency.staleness + 1)
    for w in workers:
        came, merged, answered = list[Instruction](), list[Instruction](), list[Instruction]()
        for i in mine:
            name, place = draft.buckets[i].name, f"{i}.{w}"
            came.append(
                Instruction(
                    f"I{place}", Receive(name, (w,), f"{name}.up", Space.INBOX), f"from{w}", (After(f"U{place}", 1),)
                )
            )
            enters = Apply(name, w, 1 / len(workers), len(workers), delta=True, scale=1 / len(workers))
            merged.append(Instruction(f"U{place}", enters, "serve", (After(f"A.{w}"),), priority=1))
            back = Send(name, (w,), f"{name}.down", Space.OUTBOX)
            answered += [
                Instruction(f"V{place}", Snapshot(name, w), "serve", (After(f"Q.{w}"),)),
                Instruction(f"D{place}", back, f"to{w}", (After(f"V{place}"),)),
            ]
        whole = (*(After(one.name) for one in came), *(After(f"D{i}.{w}", 1) for i in mine))
        enough = tuple(After(one.name) for one in merged)
        body += [
            *came,
            Instruction(f"A.{w}", Mark(), "serve", whole, priority=1),
            *merged,
            Instruction(f"Q.{w}", Mark(), "serve", enough, gate=company),
            *answered,
        ]
    return body
