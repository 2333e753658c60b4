"""The end of a run, or of a phase, whose replicas still differ: a round of no minibatch brings them together."""

from __future__ import annotations

from partita.lowering.agreement import COMPUTE, WIRE, program_of
from partita.lowering.async_servers import handed_out
from partita.lowering.averages import settles
from partita.lowering.exchanges import pushes
from partita.lowering.pairs import pairs_up
from partita.lowering.samples import Draft
from partita.lowering.shared import races, reread
from partita.plan.plan import waits_for_all
from partita.plan.sync import Payload
from partita.program.instruction import After, Collective, Instruction, Mix, Scale, Term
from partita.program.program import Program, Role
from partita.program.space import Kind, Space


def final_round(draft: Draft) -> Program | None:
    """All take what servers ahead of them have, or their machine, the mean of their weights (DP-24: once, at the end),
    or the centre that they are tied to; None where a round's end leaves them equal."""
    if not waits_for_all(draft.plan):
        return handed_out(draft)
    if draft.plan.mesh.size > 1 and races(draft.sync):
        return reread(draft)
    if draft.plan.mesh.size == 1 or not draft.plan.sync or not settles(draft.sync):
        return None
    body, workers = list[Instruction](), draft.workers
    centre = draft.sync.payload in (Payload.ELASTIC, Payload.DUAL)
    for i, bucket in enumerate(draft.buckets):
        taken = After(f"D{i}")
        beside = centre or pushes(draft.sync.through) or pairs_up(draft.sync)
        if beside:
            body.append(Instruction(taken.name, Mix(bucket.name, Space.PARAMETER, (Term(Space.ANCHOR),)), "compute"))
        if centre:
            continue
        whole = Collective(Kind.ALL_REDUCE, bucket.name, (workers,), Space.PARAMETER, draft.algorithm(bucket.name))
        body.append(Instruction(f"A{i}", whole, "wire", (taken,) if beside else ()))
        body.append(Instruction(f"X{i}", Scale(bucket.name, 1 / len(workers)), "compute", (After(f"A{i}"),)))
    role = Role("worker", workers, tuple(body), (COMPUTE, WIRE))
    return program_of(draft, (role,), steps=0, semantics="consensus")
