"""The ledger that a simulated run would have written: its merges and answers in the order of their moments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from partita.program.instruction import Apply, Snapshot, Update
from partita.program.ledger import Merge
from partita.program.program import Program, Role
from partita.simulator.activities import Reals
from partita.simulator.expand import Layout


def merges_of(program: Program, layout: Layout, start: Reals) -> tuple[Merge, ...]:
    """Every merge of every server; none where no server goes ahead of its workers."""
    return tuple(merge for role in program.roles for merge in _of(role, start[layout.at(role)][:, :, 0]))


def _of(role: Role, start: Reals) -> Iterator[Merge]:
    """`start` has shape [rounds, instructions]."""
    acts = [(j, i.act) for j, i in enumerate(role.instructions) if isinstance(i.act, Apply | Snapshot | Update)]
    events = sorted((float(time), j, round, act) for j, act in acts for round, time in enumerate(start[:, j]))
    entered: Counter[tuple[str, int]] = Counter()
    version: dict[str, int] = {}
    merged: dict[str, int] = {}
    read: dict[tuple[str, int], int] = {}
    turns: dict[tuple[str, int], int] = {}
    for _, _, round, act in events:
        now = version.get(act.bucket, 0)
        if isinstance(act, Snapshot):
            read[act.bucket, act.to] = now
            continue
        if isinstance(act, Update):
            version[act.bucket] = now + (role.keeps == "server")
            continue
        entered[act.bucket, round] += 1
        if act.drop and entered[act.bucket, round] > act.need:
            continue
        place = act.bucket, act.source
        turn = round if act.drop else turns.get(place, 0)
        yield Merge(act.bucket, act.source, turn, read.get(place, 0), now, role.ranks[0])
        turns[place] = turn + 1
        merged[act.bucket] = merged.get(act.bucket, 0) + 1
        if act.delta or (not act.drop and merged[act.bucket] % act.need == 0):
            version[act.bucket] = now + 1
