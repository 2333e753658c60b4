"""The ledger that a simulated run would have written: its merges and answers in the order of their moments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from partita.arrays import Reals
from partita.program.instruction import Apply, Snapshot, Update
from partita.program.ledger import Merge
from partita.program.program import Program, Role
from partita.program.shares import lockstep
from partita.simulator.expand import Layout


def merges_of(program: Program, layout: Layout, start: Reals) -> tuple[Merge, ...]:
    """Every merge of every server; none where no server goes ahead of its workers. Workers that share memory have one
    ledger."""
    ledgers = [program.roles] if program.semantics == "racy" else [(role,) for role in program.roles]
    return () if lockstep(program) else tuple(one for roles in ledgers for one in _of(program, roles, layout, start))


def _of(program: Program, roles: Sequence[Role], layout: Layout, start: Reals) -> Iterator[Merge]:
    events = sorted(
        (float(time), round, place, j, act)
        for place, role in enumerate(roles)
        for j, act in enumerate(i.act for i in role.instructions)
        if isinstance(act, Apply | Snapshot | Update)
        for round, time in enumerate(start[layout.at(role)][:, j, 0])
    )
    entered: Counter[tuple[str, int]] = Counter()
    version: dict[str, int] = {}
    merged: dict[str, int] = {}
    read: dict[tuple[str, int], int] = {}
    turns: dict[tuple[str, int], int] = {}
    for _, round, place, _, act in events:
        now = version.get(act.bucket, 0)
        if isinstance(act, Snapshot):
            read[act.bucket, act.to] = now
            continue
        if isinstance(act, Update):
            version[act.bucket] = now + (program.drops and act.bucket in roles[place].serves)
            continue
        entered[act.bucket, round] += 1
        if act.drop and entered[act.bucket, round] > act.need:
            continue
        mine = act.bucket, act.source
        turn = round if act.drop else turns.get(mine, 0)
        yield Merge(act.bucket, act.source, turn, read.get(mine, 0), now, roles[0].ranks[0])
        turns[mine] = turn + 1
        merged[act.bucket] = merged.get(act.bucket, 0) + 1
        if act.delta or (not act.drop and merged[act.bucket] % act.need == 0):
            version[act.bucket] = now + 1
