"""Servers in two tiers: the lower ones sum up what their workers bring, the root updates, and weights go back down.

worker  push            S0-- S1----                        as to any server
        pull                                R0-- R1----
leaf    from w          I0-- I1----                        a lane for each worker of its own
        serve               C0   C1
        push                  S0-- S1----                  one sum to the root
        pull                         R0-- R1----
        to w                              D0-- D1----
root    from leaf             I0-- I1----   to leaf D0-- D1----   serve C0 U0 C1 U1
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from partita.lowering.agreement import lanes_of, program_of
from partita.lowering.samples import Draft, ReplicaGroup
from partita.plan.sync import Servers
from partita.program.instruction import After, Combine, Instruction, Receive, Send, Update
from partita.program.layout import even
from partita.program.program import Program, Role
from partita.program.space import Space

Ranks = tuple[int, ...]
Working = Callable[[Draft, ReplicaGroup, Ranks], Role]


def tiered(draft: Draft, working: Working) -> Program:
    """Hierarchical servers (DP-08): workers in even groups, each under one of `fan` servers, and these under one root;
    `working` makes the role of a group for the server of each bucket."""
    root, *leaves = draft.servers
    workers, fan = draft.workers, len(leaves)
    edges = even(len(workers), fan)
    children = {leaf: workers[edges[k] : edges[k + 1]] for k, leaf in enumerate(leaves)}
    roles = []
    for leaf, below in children.items():
        for group in draft.groups:
            places = [k for k, rank in enumerate(group.ranks) if rank in below]
            if places:
                ranks, starts = (tuple(row[k] for k in places) for row in (group.ranks, group.starts))
                role = working(draft, replace(group, ranks=ranks, starts=starts), (leaf,) * len(draft.buckets))
                roles.append(replace(role, name=f"{role.name}-under-{leaf}"))
    roles.append(_role(root, _root(draft, tuple(leaves))))
    roles += [_role(leaf, _leaf(draft, root, below)) for leaf, below in children.items()]
    return program_of(draft, tuple(roles))


def fans_out(through: object) -> bool:
    """Whether servers stand in tiers."""
    return isinstance(through, Servers) and through.levels > 1


def _role(rank: int, body: list[Instruction]) -> Role:
    return Role(f"server-{rank}", (rank,), tuple(body), lanes_of(body), keeps="server")


def _summed(bucket: str, i: int, below: Ranks, key: str, free: tuple[After, ...]) -> list[Instruction]:
    """What those below bring of a bucket, and its sum."""
    body = [
        Instruction(f"I{i}.{w}", Receive(bucket, (w,), key, Space.INBOX), f"from{w}", (After(f"C{i}", 1),))
        for w in below
    ]
    waits = tuple(After(f"I{i}.{w}") for w in below)
    return [*body, Instruction(f"C{i}", Combine(bucket, below), "serve", (*waits, *free))]


def _handed(bucket: str, i: int, below: Ranks, key: str, ready: After) -> list[Instruction]:
    """The new weights to all below."""
    return [Instruction(f"D{i}.{w}", Send(bucket, (w,), key, Space.PARAMETER), f"to{w}", (ready,)) for w in below]


def _root(draft: Draft, leaves: Ranks) -> list[Instruction]:
    body: list[Instruction] = []
    for i, bucket in enumerate(draft.buckets):
        sent = tuple(After(f"D{i}.{leaf}", 1) for leaf in leaves)
        body += _summed(bucket.name, i, leaves, f"{bucket.name}.sum", ())
        body.append(Instruction(f"U{i}", Update(bucket.name), "serve", (After(f"C{i}"), *sent)))
        body += _handed(bucket.name, i, leaves, f"{bucket.name}.new", After(f"U{i}"))
    return body


def _leaf(draft: Draft, root: int, below: Ranks) -> list[Instruction]:
    body: list[Instruction] = []
    for i, bucket in enumerate(draft.buckets):
        name, sent = bucket.name, tuple(After(f"D{i}.{w}", 1) for w in below)
        new = Receive(name, (root,), f"{name}.new", Space.PARAMETER)
        body += _summed(name, i, below, f"{name}.up", (After(f"S{i}", 1),))
        body.append(Instruction(f"S{i}", Send(name, (root,), f"{name}.sum"), f"push{root}", (After(f"C{i}"),)))
        body.append(Instruction(f"R{i}", new, f"pull{root}", sent))
        body += _handed(name, i, below, f"{name}.down", After(f"R{i}"))
    return body
