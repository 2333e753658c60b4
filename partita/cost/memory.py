"""Live bytes of tensors on a rank over time; the peak is the highest point of the curve.

bytes              ____/##B##\\____          activations, gradients on their way, messages: come and go
        __/##F##__/                \\___
buckets, optimizer, parameters ---------     stay
        Load  F    B P B P       U           instructions, at the times of a Timeline or in the order of the text
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import numpy as np

from partita.cost.curve import Course, Curve, unit
from partita.cost.ledger import Instance, Ledger
from partita.graph.graph import Graph
from partita.graph.tensor import ITEMSIZE
from partita.plan.rule import ruled
from partita.program.instruction import Act, Apply, Combine, Compute, Pack, Receive, Snapshot, Space, Update
from partita.program.program import Bucket, Program, Role
from partita.units import Bytes, Seconds


def peak_memory(program: Program, graph: Graph, rank: int) -> Bytes:
    """Steady-state peak of live tensor bytes on `rank`, its instructions carried out in the order of the text."""
    role = program.role_of[rank]
    count = len(role.instructions)
    order = [Instance(i, n, n * count + i, n * count + i + 1) for n in range(2) for i in range(count)]
    return memory_curve(program, graph, role, order).peak


def memory_curve(
    program: Program, graph: Graph, role: Role, instances: Sequence[Instance], *, foreach: bool = False
) -> Curve:
    """Live bytes on a rank of `role` while it carries out `instances`, whole rounds of the steady state; from the first
    computing on. `foreach` says that an update works on all pieces of a bucket at once."""
    ledger, body = Ledger(program, graph, role, foreach), role.instructions
    ordered = sorted(_posted(instances, role), key=lambda one: (one.start, one.round, one.place))
    for one in ordered:
        ledger.enter(one, body[one.place].act)
    computing = [one.start for one in ordered if isinstance(body[one.place].act, Compute)]
    first = computing[0] if computing else ordered[0].start
    found = ledger.changes
    moved = found.any(axis=1)
    moments = np.concatenate([[first], np.array(ledger.moments, np.float64)[moved]])
    order = np.argsort(moments, kind="stable")
    parts = np.cumsum(np.concatenate([resident(program, graph, role)[None], found[moved]])[order], axis=0)
    kept = moments[order] >= first
    return Curve(moments[order][kept], parts[kept])


def _posted(instances: Sequence[Instance], role: Role) -> list[Instance]:
    """With each Receive from where its memory is there: as soon as its lane is free and what it waits for is done,
    however late the message comes."""
    found, free = [], dict[str, Seconds]()
    ends = {(role.instructions[one.place].name, one.round): one.end for one in instances}
    for one in sorted(instances, key=lambda one: (one.round, one.place)):
        instruction = role.instructions[one.place]
        if isinstance(instruction.act, Receive):
            waits = [ends.get((after.name, one.round - after.rounds), -inf) for after in instruction.after]
            ready = max([free.get(instruction.lane, one.start), *waits])
            found.append(Instance(one.place, one.round, min(ready, one.start), one.end))
        else:
            found.append(one)
        free[instruction.lane] = one.end
    return found


def resident(program: Program, graph: Graph, role: Role) -> Course:
    """Bytes that stay on a rank of the role, by PARTS."""
    acts = [i.act for i in role.instructions]
    held = [program.graph_of(stage, graph) for stage in program.stages_of(role) or (-1,)]
    parameters = sum({p.name: p.tensor.size() for part in held for p in part.parameters}.values())
    parameters += sum(b.tensor.size() for part in held for b in part.buffers)
    parameters += sum(len(c.data) for part in held for c in part.constants)
    updated = [program.bucket[name] for name in set(map(stepped, acts)) - {""}]
    parameters -= sum(bucket.size - _kept(bucket, Space.PARAMETER) for bucket in updated)
    elements = sum(bucket.owned for bucket in updated)
    masters = sum(bucket.owned * ITEMSIZE[bucket.master] for bucket in updated if bucket.master)
    packed = {a.bucket for a in acts if isinstance(a, Pack | Combine)}
    packed |= {a.bucket for a in acts if isinstance(a, Apply) and (a.need > 1 or a.drop)}
    buckets = program.slots * sum(_kept(program.bucket[name], Space.GRADIENT) for name in packed)
    boxes = {(a.bucket, a.source) for a in acts if isinstance(a, Receive) and a.space is Space.INBOX}
    boxes |= {(a.bucket, (-1, a.to)) for a in acts if isinstance(a, Snapshot) and a.to not in role.ranks}
    inboxes = sum(program.bucket[bucket].size for bucket, _ in boxes)
    kept = sum(program.bucket[name].size for _, name in program.kept(role))
    optimizer = ruled(graph, program.update).optimizer
    return (
        unit("parameters") * parameters + unit("optimizer") * (optimizer.state_bytes(elements) + masters)
        + unit("buckets") * (buckets + kept) + unit("messages") * inboxes
    )  # fmt: skip


def stepped(act: Act) -> str:
    """The bucket of which an act makes an optimizer's steps, and so needs its state."""
    return act.bucket if isinstance(act, Update) or (isinstance(act, Apply) and not act.delta) else ""


def _kept(bucket: Bucket, space: Space) -> Bytes:
    """Bytes of a bucket that stay on a rank, where parts differ on the one with the largest."""
    return (bucket.elements if bucket.keeps(space) else bucket.owned) * bucket.item(space)
