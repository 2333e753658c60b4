"""The ledger that a simulated run would have written: its merges and answers in the order of their moments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from partita.arrays import Reals
from partita.program.instruction import Apply, Snapshot, Update
from partita.program.ledger import Merge
from partita.program.program import Program, Role
from partita.program.shares import lockstep
from partita.program.versions import Ledger, makes_version
from partita.simulator.expand import Layout


def merges_of(program: Program, layout: Layout, start: Reals) -> tuple[Merge, ...]:
    """Every merge of every server; none where no server goes ahead of its workers. Workers that share memory have one
    ledger."""
    ledgers = [program.roles] if program.semantics == "racy" else [(role,) for role in program.roles]
    return () if lockstep(program) else tuple(one for roles in ledgers for one in _of(program, roles, layout, start))


def _of(program: Program, roles: Sequence[Role], layout: Layout, start: Reals) -> list[Merge]:
    events = sorted(
        (float(time), round, place, j, act)
        for place, role in enumerate(roles)
        for j, act in enumerate(i.act for i in role.instructions)
        if isinstance(act, Apply | Snapshot | Update)
        for round, time in enumerate(start[layout.at(role)][:, j, 0])
    )
    entered: Counter[tuple[str, int]] = Counter()
    ledger = Ledger(roles[0].ranks[0])
    for _, round, place, _, act in events:
        if isinstance(act, Snapshot):
            ledger.give(act.bucket, act.to)
        elif isinstance(act, Update):
            if makes_version(program, roles[place], act.bucket):
                ledger.step(act.bucket)
        else:
            entered[act.bucket, round] += 1
            if not act.drop or entered[act.bucket, round] <= act.need:
                ledger.merge(act, round)
    return ledger.merges
