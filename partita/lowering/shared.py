"""Workers of one machine that change the same weights without locks (class racy).

compute   T0 T1 F B0 P0 B1 P1 K0 K1 U0 U1 C0 C1 A0 A1 |    T: a copy of what the machine has, torn where others write
                                                           C: what the worker's own step changed of it
                                                           A: that is added to what the machine has, by then another

Nobody waits for anybody before the run's end (DP-12).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from partita.graph.graph import Graph
from partita.lowering.agreement import COMPUTE, DATA, WIRE, program_of
from partita.lowering.samples import Draft, ReplicaGroup, packed, passes, separate
from partita.plan.plan import Plan
from partita.plan.sync import Consistency, Frequency, Outer, SharedMemory, Sync
from partita.program.instruction import After, Apply, Collective, Instruction, Mix, Scale, Snapshot, Term, Update
from partita.program.layout import WEIGHT, WORD
from partita.program.program import Program, Role
from partita.program.space import Kind, Space


def races(sync: Sync) -> bool:
    """Whether workers write to the same memory."""
    return isinstance(sync.through, SharedMemory)


def racing_gaps(graph: Graph, plan: Plan) -> Iterator[tuple[bool, str]]:
    """(whether such a plan asks for it, what) of all that is not brought about yet."""
    sync = plan.sync[0]
    yield (
        sync.frequency != Frequency() or sync.outer != Outer(),
        "memory that is shared now and then, or outer optimizers",
    )
    yield sync.consistency not in (Consistency(), Consistency(staleness=-1)), "a bound on staleness in shared memory"
    yield bool(graph.clip_norm), "a bound on the norm of gradients (clip_norm) in shared memory"
    yield bool(plan.before), "phases before shared memory"


def racing(draft: Draft) -> Program:
    """Each worker's step on its part of the minibatch, whose samples weigh what they do in the whole one."""
    through = draft.sync.through
    assert isinstance(through, SharedMemory)
    roles = tuple(
        Role(f"{one.name}-{one.ranks[0]}", one.ranks, tuple(_round(draft, one)), (COMPUTE, DATA))
        for group in draft.groups
        for one in separate(group, group.ranks)
    )
    program = program_of(draft, roles, semantics="racy")
    buckets = tuple(replace(b, shared=through.dtype or b.dtype) if b.pieces else b for b in program.buckets)
    return replace(program, buckets=buckets)


def _round(draft: Draft, group: ReplicaGroup) -> list[Instruction]:
    rank, named = group.ranks[0], [bucket.name for bucket in draft.buckets]
    share, minus, change = group.count / draft.batch, Term(Space.PARAMETER, (-1.0,)), Space.DELTA
    body = [Instruction(f"T{i}", Snapshot(name, rank, Space.SHARED), "compute") for i, name in enumerate(named)]
    body += packed(draft, passes(draft, group), {})
    for i, name in enumerate(named if draft.weight else ()):
        body.append(Instruction(f"W{i}", Scale(name, share, Space.GRADIENT, WEIGHT), "compute"))
    for i, name in enumerate(named):
        added = Apply(name, rank, share, len(draft.workers), delta=True, into=Space.SHARED)
        body += [
            Instruction(f"K{i}", Mix(name, change, (minus,)), "compute"),
            Instruction(f"U{i}", Update(name, share=share), "compute"),
            Instruction(f"C{i}", Mix(name, change, (Term(change), Term(Space.PARAMETER))), "compute"),
            Instruction(f"A{i}", added, "compute"),
        ]
    return body


def reread(draft: Draft) -> Program:
    """The end of a run: once all have added what they have, each takes what there is."""
    met = Collective(Kind.ALL_REDUCE, WORD, (draft.workers,), Space.PARAMETER)
    body = [Instruction("N", met, "wire")]
    for i, bucket in enumerate(draft.buckets):
        whole = Mix(bucket.name, Space.PARAMETER, (Term(Space.SHARED),))
        body.append(Instruction(f"D{i}", whole, "compute", (After("N"),)))
    role = Role("worker", draft.workers, tuple(body), (COMPUTE, WIRE))
    return program_of(draft, (role,), steps=0, semantics="racy")
