"""Live bytes of tensors on a rank over time; the peak is the highest point of the curve.

bytes              ____/##B##\\____          activations, gradients on their way, messages: come and go
        __/##F##__/                \\___
buckets, optimizer, parameters ---------     stay
        Load  F    B P B P       U           instructions, at the times of a Timeline or in the order of the text
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from math import inf

import numpy as np
from numpy.typing import NDArray

from partita.cost.curve import Course, Curve, unit
from partita.cost.ledger import END, Instance, Ledger
from partita.graph.graph import Graph
from partita.graph.tensor import ITEMSIZE
from partita.plan.rule import ruled
from partita.program.instruction import Act, Apply, Combine, Compute, Decode, Pack, Receive, Snapshot, Space, Update
from partita.program.program import Bucket, Program, Role
from partita.units import Bytes

Ints = NDArray[np.int64]
Reals = NDArray[np.float64]


def peak_memory(program: Program, graph: Graph, rank: int) -> Bytes:
    """Steady-state peak of live tensor bytes on `rank`, its instructions carried out in the order of the text."""
    role = program.role_of[rank]
    start = np.arange(2.0 * len(role.instructions)).reshape(2, -1)
    return memory_curve(program, graph, role, start, start + 1).peak


def memory_curve(
    program: Program, graph: Graph, role: Role, start: Reals, end: Reals, *, foreach: bool = False
) -> Curve:
    """Live bytes on a rank of `role` whose instructions take from `start` to `end`, shape [rounds, instructions], whole
    rounds of the steady state; from the first computing on. `foreach` says that an update works on all pieces of a
    bucket at once."""
    return written(program, graph, role, start, end, foreach=foreach).at(start, end)


@dataclass(frozen=True, eq=False)
class Changes:
    """What comes and goes on a rank of `role`, and with which instances of its instructions, whenever these are: entry
    k is `parts[k]`, shape [., PARTS], when instance number[k] has gone through share[k] of its time. Entries last[k] go
    with that one of the instances users[k] that begins last. `resident` is what stays."""

    role: Role
    resident: Course
    number: Ints
    share: Reals
    parts: Course
    last: tuple[range, ...]
    users: tuple[list[int], ...]

    def at(self, start: Reals, end: Reals) -> Curve:
        """The curve where instances take from `start` to `end`, shape [rounds, instructions]. What the bytes are for is
        as where it was written."""
        begun, ended, number = posted(self.role, start, end).ravel(), end.ravel(), self.number.copy()
        turn = np.empty(len(begun), np.int64)
        turn[np.lexsort((np.arange(len(begun)), begun))] = np.arange(len(begun))
        for entries, users in zip(self.last, self.users, strict=True):
            number[entries.start : entries.stop] = max(users, key=turn.item)
        computing = np.tile([isinstance(i.act, Compute) for i in self.role.instructions], len(start))
        first = float(begun[computing].min() if computing.any() else begun.min())
        inside = begun[number] + self.share * (ended[number] - begun[number])
        moments = np.concatenate([[first], np.where(self.share == END, ended[number], inside)])
        order = np.argsort(moments, kind="stable")
        parts = np.cumsum(np.concatenate([self.resident[None], self.parts])[order], axis=0)
        kept = moments[order] >= first
        return Curve(moments[order][kept], parts[kept])


def written(program: Program, graph: Graph, role: Role, start: Reals, end: Reals, *, foreach: bool = False) -> Changes:
    """What `memory_curve` adds up."""
    ledger, body = Ledger(program, graph, role, foreach), role.instructions
    begun = posted(role, start, end).ravel()
    for number in np.lexsort((np.arange(len(begun)), begun)).tolist():
        ledger.enter(Instance(number, number // len(body)), body[number % len(body)].act)
    found = ledger.changes
    moved = found.any(axis=1)
    place = np.concatenate([[0], np.cumsum(moved)]).tolist()
    changes = Changes(
        role, resident(program, graph, role), np.array(ledger.number, np.int64)[moved], np.array(ledger.share)[moved],
        found[moved], tuple(range(place[some.start], place[some.stop]) for some, _ in ledger.left),
        tuple(users for _, users in ledger.left),
    )  # fmt: skip
    vars(ledger).clear()  # what it remembers holds it: it would stay until somebody looks for cycles
    return changes


def posted(role: Role, start: Reals, end: Reals) -> Reals:
    """The starts, with each Receive from where its memory is there: as soon as its lane is free and what it waits for
    is done, however late the message comes."""
    found, body, last = start.copy(), role.instructions, dict[str, int]()
    place, shifted = {i.name: j for j, i in enumerate(body)}, _shifted(end)
    ends = {i.lane: j for j, i in enumerate(body)}
    for j, i in enumerate(body):
        if isinstance(i.act, Receive):
            before = end[:, last[i.lane]] if i.lane in last else shifted(1)[:, ends[i.lane]]
            waits = [shifted(after.rounds)[:, place[after.name]] for after in i.after]
            free = np.isfinite(before)
            ready = np.maximum.reduce([np.where(free, before, start[:, j]), *waits])
            found[:, j] = np.minimum(ready, start[:, j])
        last[i.lane] = j
    return found


def _shifted(end: Reals) -> Callable[[int], Reals]:
    """Ends so many rounds before each round, long ago for those that are not known."""

    @cache
    def of(rounds: int) -> Reals:
        found = np.full_like(end, -inf)
        kept = max(len(end) - abs(rounds), 0)
        if rounds >= 0:
            found[len(end) - kept :] = end[:kept]
        else:
            found[:kept] = end[len(end) - kept :]
        return found

    return of


def resident(program: Program, graph: Graph, role: Role) -> Course:
    """Bytes that stay on a rank of the role, by PARTS; what its machine has for all ranks is nobody's own."""
    acts = [i.act for i in role.instructions]
    held = [program.graph_of(stage, graph) for stage in program.stages_of(role) or (-1,)]
    parameters = sum({p.name: p.tensor.size() for part in held for p in part.parameters}.values())
    parameters += sum(b.tensor.size() for part in held for b in part.buffers)
    parameters += sum(len(c.data) for part in held for c in part.constants)
    updated = [program.bucket[name] for name in set(map(stepped, acts)) - {""}]
    parameters -= sum(bucket.size - _kept(bucket, Space.PARAMETER) for bucket in updated)
    elements = sum(bucket.owned for bucket in updated)
    masters = sum(bucket.owned * ITEMSIZE[bucket.master] for bucket in updated if bucket.master)
    packed = {a.bucket for a in acts if isinstance(a, Combine) or (isinstance(a, Pack) and a.space is Space.GRADIENT)}
    packed |= {a.bucket for a in acts if isinstance(a, Apply) and (a.need > 1 or a.drop)}
    packed |= {a.bucket for a in acts if isinstance(a, Receive) and a.space is Space.GRADIENT}
    buckets = program.slots * sum(_kept(program.bucket[name], Space.GRADIENT) for name in packed)
    boxes = {(a.bucket, a.source) for a in acts if isinstance(a, Receive) and a.space is Space.INBOX}
    boxes |= {(a.bucket, a.sources) for a in acts if isinstance(a, Decode) and a.into is Space.INBOX}
    given = [a for a in acts if isinstance(a, Snapshot)]
    boxes |= {(a.bucket, (-1, a.to)) for a in given if a.to not in role.ranks or a.into is Space.INBOX}
    inboxes = sum(program.bucket[bucket].size for bucket, _ in boxes)
    kept = sum(program.bucket[name].size for space, name in program.kept(role) if space is not Space.SHARED)
    kept += sum(program.bucket[name].size for name in set(map(_squared, acts)) - {""})
    optimizer = ruled(graph, program.update).optimizer
    return (
        unit("parameters") * parameters + unit("optimizer") * (optimizer.state_bytes(elements) + masters)
        + unit("buckets") * (buckets + kept) + unit("messages") * inboxes
    )  # fmt: skip


def stepped(act: Act) -> str:
    """The bucket of which an act makes an optimizer's steps, and so needs its state."""
    return act.bucket if isinstance(act, Update) or (isinstance(act, Apply) and not act.delta) else ""


def _squared(act: Act) -> str:
    """The bucket of whose gradients' squares an act keeps a running mean."""
    decays = isinstance(act, Apply) and any(dict(each.settings).get("decay") for each in act.corrections)
    return act.bucket if isinstance(act, Apply) and decays else ""


def _kept(bucket: Bucket, space: Space) -> Bytes:
    """Bytes of a bucket that stay on a rank, where parts differ on the one with the largest."""
    return (bucket.elements if bucket.keeps(space) else bucket.owned) * bucket.item(space)
