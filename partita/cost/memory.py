"""Live bytes of tensors on a rank over time; the peak is the highest point of the curve.

bytes              ____/##B##\\____          activations, gradients, messages: allocated and freed within a round
        __/##F##__/                \\___
buckets, optimizer, parameters ---------     resident: allocated before the first round
        Load  F    B P B P       U           instructions, at the times of a Timeline or in the order of the text
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from math import inf

import numpy as np

from partita.arrays import Ints, Reals
from partita.cost.allocations import END, AllocationRecorder
from partita.cost.memory_curve import ByteSeries, MemoryCurve, unit
from partita.cost.recording import recorded
from partita.cost.scratch import Processor
from partita.cost.workspaces import NONE, Workspaces
from partita.graph.graph import Graph
from partita.graph.tensor import ITEMSIZE
from partita.plan.rule import ruled
from partita.program.instruction import Act, Apply, Compute, Decode, Load, Receive, Snapshot, Update
from partita.program.layout import Bucket
from partita.program.program import Program, Role
from partita.program.space import Space
from partita.units import Bytes
from partita.wire.rows import rows_bytes


def peak_memory(program: Program, graph: Graph, rank: int) -> Bytes:
    """Peak of live tensor bytes on `rank` in the steady state, if its instructions run one by one in program order."""
    role = program.role_of[rank]
    start = np.arange(2.0 * len(role.instructions)).reshape(2, -1)
    return memory_curve(program, graph, role, start, start + 1).peak


def memory_curve(program: Program, graph: Graph, role: Role, start: Reals, end: Reals) -> MemoryCurve:
    """Live bytes over time on a rank of `role`, from the first Compute on.

    Instructions run from `start` to `end`, in seconds, both of shape [rounds, instructions]: whole rounds of the steady
    state.
    """
    return changes_of(program, graph, role, start, end).at(start, end)


@dataclass(frozen=True, eq=False)
class Changes:
    """What a rank of `role` allocates and frees, by instances of its instructions, whatever the times of these are.

    Entry k allocates `parts[k]` bytes by purpose (shape [entries, PURPOSES]; negative: frees) when instance `number[k]`
    has gone through `share[k]` of its time. The entries `last[k]` happen with whichever of the instances `users[k]`
    starts last. `resident` are the bytes, by purpose, that are never freed.
    """

    role: Role
    resident: ByteSeries
    number: Ints
    share: Reals
    parts: ByteSeries
    last: tuple[range, ...]
    users: tuple[list[int], ...]

    def at(self, start: Reals, end: Reals) -> MemoryCurve:
        """The memory curve for instances that run from `start` to `end`, in seconds, shape [rounds, instructions].

        Other times than those of `changes_of` may allocate in another order: totals are right then, purposes nearly.
        """
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
        return MemoryCurve(moments[order][kept], parts[kept])


def changes_of(
    program: Program, graph: Graph, role: Role, start: Reals, end: Reals, *, on: Processor = Processor.WIDE,
    spaces: Workspaces = NONE,
) -> Changes:  # fmt: skip
    """What a rank of `role` allocates and frees; its instructions as in `memory_curve`. Temporary tensors depend on the
    kind of processor that it is `on`, and on the `spaces` that a card's operators take."""
    recorder, begun = AllocationRecorder(program, graph, role, on, spaces), posted(role, start, end).ravel()
    log = recorded(recorder, [i.act for i in role.instructions], np.lexsort((np.arange(len(begun)), begun)))
    moved = log.changes.any(axis=1)
    place = np.concatenate([[0], np.cumsum(moved)])
    held = resident(program, graph, role) + unit("workspace") * spaces.kept
    changes = Changes(
        role, held, log.number[moved], log.share[moved], log.changes[moved],
        tuple(range(first, stop) for first, stop in place[log.drops].tolist()), log.users,
    )  # fmt: skip
    vars(recorder).clear()  # its caches refer to it: break the cycle, since the garbage collector may run much later
    return changes


def loaded_late(role: Role, start: Reals, end: Reals) -> tuple[Reals, Reals]:
    """The times with every Load where the first instruction that waits for it starts: samples that are at hand are
    read by whoever needs them, and not ahead."""
    late, users = (start.copy(), end.copy()), dict[str, list[int]]()
    for k, i in enumerate(role.instructions):
        for after in i.after:
            users.setdefault(after.name, []).append(k)
    for j, i in enumerate(role.instructions):
        if isinstance(i.act, Load) and i.name in users:
            needed = start[:, users[i.name]].min(axis=1)
            for each in late:
                each[:, j] = np.maximum(each[:, j], needed)
    return late


def posted(role: Role, start: Reals, end: Reals) -> Reals:
    """`start`, but for a Receive the time at which it is posted, and its memory allocated: as soon as its lane is free
    and what it waits for is done, however late the message arrives."""
    body, last = role.instructions, dict[str, int]()
    place, ends = {i.name: j for j, i in enumerate(body)}, {i.lane: j for j, i in enumerate(body)}
    here, before = list[int](), list[int]()  # receives, and what their lanes do before: in the round before, from -n on
    for j, i in enumerate(body):
        if isinstance(i.act, Receive):
            here.append(j)
            before.append(last.get(i.lane, ends[i.lane] - len(body)))
        last[i.lane] = j
    found, shifted = start.copy(), cache(partial(_earlier, end))
    free = np.where(np.array(before, np.int64) < 0, shifted(1)[:, before], end[:, before])
    ready = np.where(np.isfinite(free), free, start[:, here])
    for k, j in enumerate(here):
        for after in body[j].after:
            ready[:, k] = np.maximum(ready[:, k], shifted(after.rounds)[:, place[after.name]])
    found[:, here] = np.minimum(ready, start[:, here])
    return found


def _earlier(end: Reals, rounds: int) -> Reals:
    """`end` of the instances so many rounds earlier, -inf if there are none."""
    found = np.full_like(end, -inf)
    kept = max(len(end) - abs(rounds), 0)
    if rounds >= 0:
        found[len(end) - kept :] = end[:kept]
    else:
        found[:kept] = end[len(end) - kept :]
    return found


def resident(program: Program, graph: Graph, role: Role) -> ByteSeries:
    """Bytes by purpose (PURPOSES) that a rank of the role holds all the time. Space.SHARED, which a machine has once
    for all of its ranks, is not counted."""
    acts = [i.act for i in role.instructions]
    held = [program.graph_of(stage, graph) for stage in program.stages_of(role) or (-1,)]
    parameters = sum({p.name: p.tensor.size() for part in held for p in part.parameters}.values())
    parameters += sum(b.tensor.size() for part in held for b in part.buffers)
    parameters += sum(len(c.data) for part in held for c in part.constants)
    updated = [program.bucket[name] for name in set(map(stepped, acts)) - {""}]
    parameters -= sum(bucket.size - _kept(bucket, Space.PARAMETER) for bucket in updated)
    elements = sum(bucket.owned for bucket in updated)
    masters = sum(bucket.owned * ITEMSIZE[bucket.master] for bucket in updated if bucket.master)
    buckets = program.slots * sum(_kept(program.bucket[name], Space.GRADIENT) for name in role.packed)
    boxes = {(a.bucket, a.source) for a in acts if isinstance(a, Receive) and a.space is Space.INBOX}
    boxes |= {(a.bucket, a.sources) for a in acts if isinstance(a, Decode) and a.into is Space.INBOX}
    given = [a for a in acts if isinstance(a, Snapshot)]
    boxes |= {(a.bucket, (-1, a.to)) for a in given if a.to not in role.ranks or a.into is Space.INBOX}
    inboxes = sum(program.bucket[bucket].size for bucket, _ in boxes)
    kept = sum(program.bucket[name].size for space, name in program.kept(role) if space is not Space.SHARED)
    kept += sum(program.bucket[name].size for name in set(map(_squared, acts)) - {""})
    optimizer = ruled(graph, program.update).optimizer
    messages = inboxes + rows_bytes(program, role)
    return (
        unit("parameters") * parameters + unit("optimizer") * (optimizer.state_bytes(elements) + masters)
        + unit("buckets") * (buckets + kept) + unit("messages") * messages
    )  # fmt: skip


def stepped(act: Act) -> str:
    """The bucket that an act updates with its optimizer, whose state is therefore held; "" for other acts."""
    return act.bucket if isinstance(act, Update) or (isinstance(act, Apply) and not act.delta) else ""


def _squared(act: Act) -> str:
    """The bucket for which an act keeps a running mean of squared gradients (adaptive DC-ASGD); "" for other acts."""
    decays = isinstance(act, Apply) and any(dict(each.settings).get("decay") for each in act.corrections)
    return act.bucket if isinstance(act, Apply) and decays else ""


def _kept(bucket: Bucket, space: Space) -> Bytes:
    """Bytes of a bucket that a rank keeps in a space; if ranks own parts of it, those of the largest part."""
    return (bucket.elements if bucket.keeps(space) else bucket.owned) * bucket.item(space)
