"""Agreement through parameter servers, in lockstep: push gradients, sum, update, pull weights; `arriving` has others.

worker  compute  F0 F1 B0 P0 B1 P1            | F of the next round, each part after the R of what it reads
        push           S0-- S1----
        pull                    R0-- R1----
server  from w         I0-- I1----                 one lane for each worker: links are full duplex
        serve               C0 U0 C1 U1
        to w                    D0-- D1----

A server asks for a worker's I2 once C0 is done: flows that share its port are never fair, and a worker that runs ahead
would take the room of those whose gradients every sum still waits for.

The weight of a weighted loss goes ahead of the gradients, to every server: PW SW, IW CW, and a W0 before each U0.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from partita.lowering.agreement import COMPUTE, DATA, program_of, scaled
from partita.lowering.arriving import arriving, waits_for_all
from partita.lowering.keys import Owners, owners_of
from partita.lowering.norm import bounded
from partita.lowering.samples import Crew, Draft, packed, passes
from partita.plan.plan import Plan
from partita.plan.sync import Servers
from partita.program.instruction import After, Combine, Instruction, Receive, Send, Space, Update
from partita.program.program import WEIGHT, Lane, Program, Role

AHEAD: Final = 2  # buckets that a worker may be ahead of the slowest one at a server


def served(draft: Draft, plan: Plan) -> Program:
    """Synchronous servers (DP-03; with several, DP-05's keys by bytes): each bucket has one owner, which sums the
    gradients of all workers in rank order, updates, and sends the new weights back."""
    if not waits_for_all(plan):
        return arriving(draft, plan)
    through = draft.sync.through
    assert isinstance(through, Servers)
    hosts = draft.servers if through.own else tuple(range(through.count))
    owners = owners_of(draft, hosts)
    roles = [_worker(draft, crew, owners) for one in draft.crews for crew in _apart(one, hosts)]
    roles += [_server(draft, host, owners) for host in draft.servers]
    return program_of(draft, tuple(roles))


def _apart(crew: Crew, hosts: tuple[int, ...]) -> list[Crew]:
    """A crew without those that also serve, and each of these by itself."""
    place = {rank: i for i, rank in enumerate(crew.ranks)}
    parts = [tuple(r for r in crew.ranks if r not in hosts), *((r,) for r in crew.ranks if r in hosts)]
    return [replace(crew, ranks=ranks, starts=tuple(crew.starts[place[r]] for r in ranks)) for ranks in parts if ranks]


def _worker(draft: Draft, crew: Crew, owners: Owners) -> Role:
    me = crew.ranks[0] if crew.ranks[0] in owners else -1
    everything = range(len(draft.buckets))
    free: dict[str, tuple[After, ...]] = {
        str(i): (After(f"U{i}" if owners[i] == me else f"S{i}", 1),) for i in everything
    }
    if draft.weight:
        free["W"] = tuple(After(one.name, 1) for one in _told(me, owners))
    works = passes(draft, crew)
    fresh = {
        work.instruction.name: tuple(After(f"U{i}" if owners[i] == me else f"R{i}", 1) for i in work.needs)
        for work in works
    }
    body = [replace(i, after=i.after + fresh.get(i.name, ())) for i in packed(draft, works, free)]
    back = After(body[-1].name)
    body += _told(me, owners) if draft.weight else []
    for i, bucket in enumerate(draft.buckets):
        if owners[i] != me:
            up, down = f"{bucket.name}.up", f"{bucket.name}.down"
            body.append(
                Instruction(f"S{i}", Send(bucket.name, (owners[i],), up), f"push{owners[i]}", (After(f"P{i}"),))
            )
            body.append(Instruction(f"R{i}", Receive(bucket.name, (owners[i],), down), f"pull{owners[i]}", (back,)))
    if me >= 0:
        body += _serving(draft, me, owners, (back,))
    name = crew.name if me < 0 else f"{crew.name}-server-{me}"
    return Role(name, crew.ranks, tuple(body), _lanes(body))


def _told(me: int, owners: Owners) -> list[Instruction]:
    """A worker's weight to every server but itself."""
    return [
        Instruction(f"SW{host}", Send(WEIGHT, (host,), f"{WEIGHT}.up"), f"push{host}", (After("PW"),))
        for host in sorted({*owners} - {me})
    ]


def _server(draft: Draft, host: int, owners: Owners) -> Role:
    body = _serving(draft, host, owners, ())
    return Role(f"server-{host}", (host,), tuple(body), _lanes(body), keeps="server")


def _serving(draft: Draft, host: int, owners: Owners, idle: tuple[After, ...]) -> list[Instruction]:
    """What a server does with its buckets; `idle` is what must be done before its weights may change."""
    mine = [i for i, owner in enumerate(owners) if owner == host]
    peers = [worker for worker in draft.workers if worker != host]
    body: list[Instruction] = []
    if draft.weight:
        left = [After(one.name) for one in _told(host, owners)] if host in draft.workers else []
        body += _combined(draft, host, "W", WEIGHT, left)
    for n, i in enumerate(mine):
        bucket = draft.buckets[i].name
        asked = (After(f"C{mine[n - AHEAD]}"),) if n >= AHEAD else ()
        body += _combined(draft, host, str(i), bucket, [], asked)
        body += scaled(draft, i, "serve", (After(f"C{i}"), After("CW")))
        body += _clipped(draft, mine, owners) if i == mine[-1] else []
        sent = tuple(After(f"D{i}.{w}", 1) for w in peers)
        body.append(Instruction(f"U{i}", Update(bucket), "serve", (After(f"C{i}"), *idle, *sent)))
        for w in peers:
            act_back = Send(bucket, (w,), f"{bucket}.down", Space.PARAMETER)
            body.append(Instruction(f"D{i}.{w}", act_back, f"to{w}", (After(f"U{i}"),)))
    return sorted(body, key=lambda one: isinstance(one.act, Update)) if draft.graph.clip_norm else body


def _combined(
    draft: Draft, host: int, label: str, bucket: str, waits: list[After], asked: tuple[After, ...] = ()
) -> list[Instruction]:
    """A bucket of every other worker received, once `asked` are over, and the sum of all, once `waits` are."""
    body: list[Instruction] = []
    for w in draft.workers:
        if w == host:
            waits = [*waits, After(f"P{label}")]
            continue
        act = Receive(bucket, (w,), f"{bucket}.up", Space.INBOX)
        body.append(Instruction(f"I{label}.{w}", act, f"from{w}", (After(f"C{label}", 1), *asked)))
        waits = [*waits, After(f"I{label}.{w}")]
    return [*body, Instruction(f"C{label}", Combine(bucket, draft.workers), "serve", tuple(waits))]


def _clipped(draft: Draft, mine: list[int], owners: Owners) -> list[Instruction]:
    """With a bound on the norm, one Clip of a server's buckets, on whose norm all servers agree."""
    if not draft.graph.clip_norm:
        return []
    shares, every = {draft.buckets[j].name: 1.0 for j in mine}, tuple(After(f"C{j}") for j in mine)
    return bounded(draft.graph.clip_norm, shares, (tuple(sorted({*owners})),), every, lane="serve", wire="norm")


def _lanes(body: list[Instruction]) -> tuple[Lane, ...]:
    names = dict.fromkeys(i.lane for i in body)
    known = {lane.name: lane for lane in (COMPUTE, DATA)}
    return tuple(known.get(name, Lane(name)) for name in names)
