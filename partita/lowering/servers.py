"""Synchronous parameter servers: push gradients, sum, update, pull weights. `async_servers` has the others.

worker  compute  F0 F1 B0 P0 B1 P1            | F of the next round, each part after the R of what it reads
        push           S0-- S1----
        pull                 R0--  R1----          asked for once backward has read what they replace
server  from w         I0-- I1----                 one lane for each worker: links are full duplex
        serve               C0 U0 C1 U1
        to w                    D0-- D1----

A server asks for a worker's I4 once C0 is done, and for more ahead if they are small: flows that share its port are
never fair, and a worker that runs ahead would take the room of those whose gradients every sum still waits for.

The weight of a weighted loss goes ahead of the gradients, to every server: PW SW, IW CW, and a W0 before each U0. With
a codec all workers need it, and sum it up themselves: PW AW, and a W0 before each E0.

codec at the end       E0 after P0, S0 and I0 in Space.CODED; C0 is a Decode of all workers' codings
of differences         besides, H0 HD0 after C0: what was HEARD and what is new (`coding`)
codec of the server    besides, Y0 encodes the sum after C0 (W0), with a memory of its own, and D0 sends that;
                       worker  apply  Q0 U0 after R0: all decode the same answer and step by themselves (QU-05, QU-06)
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from partita.lowering.agreement import lanes_of, means_of, program_of, scaled
from partita.lowering.async_servers import asynchronous
from partita.lowering.chain import in_chains
from partita.lowering.coding import bounded_alone, downward, encoding, heard, upward
from partita.lowering.norm import bounded
from partita.lowering.owners import Owners, owners_of
from partita.lowering.samples import Draft, ReplicaGroup, packed, passes, separate
from partita.lowering.tiers import fans_out, tiered
from partita.plan.plan import waits_for_all
from partita.plan.sync import Servers
from partita.plan.wire import Priority
from partita.program.instruction import (
    After,
    Collective,
    Combine,
    Decode,
    Encode,
    Instruction,
    Pack,
    Receive,
    Send,
    Update,
)
from partita.program.layout import WEIGHT
from partita.program.program import Program, Role
from partita.program.space import Kind, Space
from partita.units import Bytes

AHEAD: Final = 4  # buckets that a worker may be ahead of the slowest one at a server, or
WINDOW: Final[Bytes] = 2**20  # as many as this has of small ones, for which asking takes as long as coming


def served(draft: Draft) -> Program:
    """Synchronous servers (DP-03; with several, DP-05's keys by bytes): each bucket has one owner, which sums the
    gradients of all workers in rank order, updates, and sends the new weights back."""
    if not waits_for_all(draft.plan):
        return asynchronous(draft)
    through = draft.sync.through
    assert isinstance(through, Servers)
    if fans_out(through):
        return tiered(draft, _worker)
    hosts = draft.servers[: through.count]
    owners = owners_of(draft, hosts)
    roles = [
        _worker(draft, group, owners)
        for one in draft.groups
        for group in separate(one, draft.workers if draft.factored else tuple({*owners} - {-1}))
    ]
    roles += [_server(draft, host, owners) for host in hosts if through.own]
    program = program_of(draft, tuple(roles), semantics="lossy" if draft.sync.wire.codecs else "exact")
    return in_chains(program, draft) if through.replicas > 1 else program


def _worker(draft: Draft, group: ReplicaGroup, owners: Owners) -> Role:
    me = group.ranks[0] if group.ranks[0] in owners else -1
    everything, wire = range(len(draft.buckets)), draft.sync.wire
    whole = {draft.buckets[i].name for i in draft.factored}
    steps = [owners[i] in (me, -1) or downward(wire, bucket) is not None for i, bucket in enumerate(draft.buckets)]
    free: dict[str, tuple[After, ...]] = {str(i): (After(f"U{i}" if steps[i] else f"S{i}", 1),) for i in everything}
    told, means = _told(draft, me, owners), means_of(draft)
    free["W"] = tuple(After(one.name, 1) for one in told)
    works = passes(draft, group)
    fresh = {
        work.instruction.name: tuple(After(f"U{i}" if steps[i] else f"R{i}", 1) for i in work.needs) for work in works
    }
    own = bounded_alone(draft, {f"P{i}": _encoding(draft, i, owners[i] == me) for i in everything})
    packs = [i for i in packed(draft, works, free) if not (isinstance(i.act, Pack) and i.act.bucket in whole)]
    plain = [replace(i, after=i.after + fresh.get(i.name, ())) for i in packs]
    body = [one for each in plain for one in (each, *means.get(each.name, ()), *own.get(each.name, ()))]
    body += told
    for i in everything:
        if owners[i] == -1:
            body += draft.factored[i].shared(group.ranks[0], f"A{i}")
            body.append(
                Instruction(f"U{i}", Update(draft.buckets[i].name), "factors", (After(f"A{i}"), draft.spent(i)))
            )
        elif owners[i] != me:
            body += _exchange(draft, i, owners[i], group.ranks[0])
    if me >= 0:
        body += _serving(draft, me, owners)
    name = group.name if me < 0 else f"{group.name}-server-{me}"
    name = f"{name}-of-{group.ranks[0]}" if whole else name
    return Role(name, group.ranks, tuple(body), lanes_of(body))


def _encoding(draft: Draft, i: int, mine: bool) -> tuple[Instruction, ...]:
    """What a worker does with a packed bucket before it is sent, if that is encoded."""
    bucket, sent = draft.buckets[i], After(f"C{i}" if mine else f"S{i}", 1)
    coding, ready = upward(draft.sync.wire, bucket), After(f"W{i}" if draft.weight else f"P{i}")
    return tuple(encoding(draft.plan.update, str(i), bucket, coding, (ready, sent))) if coding else ()


def _exchange(draft: Draft, i: int, host: int, rank: int) -> list[Instruction]:
    """A worker's gradient to a server, and what comes back, once backward has read the weights for the last time: new
    ones, or what all apply."""
    bucket, wire, spent = draft.buckets[i], draft.sync.wire, draft.spent(i)
    up, down, answer = upward(wire, bucket), downward(wire, bucket), f"{bucket.name}.down"
    push = Send(up.name if up else bucket.name, (host,), f"{bucket.name}.up", Space.CODED if up else Space.GRADIENT)
    body = [Instruction(f"S{i}", push, f"push{host}", (After(f"E{i}" if up else f"P{i}"),))]
    if i in draft.factored:
        body = draft.factored[i].sent(rank, (host,), "push", keeps=False)
    if down is None:
        return [*body, Instruction(f"R{i}", Receive(bucket.name, (host,), answer), f"pull{host}", (spent,))]
    pull = Receive(down.name, (host,), answer, Space.CODED)
    return [
        *body,
        Instruction(f"R{i}", pull, f"pull{host}", (After(f"Q{i}", 1),)),
        Instruction(f"Q{i}", Decode(bucket.name, down.name, ()), "apply", (After(f"R{i}"),)),
        Instruction(f"U{i}", Update(bucket.name), "apply", (After(f"Q{i}"), spent)),
    ]


def _told(draft: Draft, me: int, owners: Owners) -> list[Instruction]:
    """A worker's weight to every server but itself, or to all workers, if these make means of their sums."""
    if draft.weight is None:
        return []
    if means_of(draft):
        return [Instruction("AW", Collective(Kind.ALL_REDUCE, WEIGHT, (draft.workers,)), "weigh", (After("PW"),))]
    return [
        Instruction(f"SW{host}", Send(WEIGHT, (host,), f"{WEIGHT}.up"), f"push{host}", (After("PW"),))
        for host in sorted({*owners} - {me})
    ]


def _server(draft: Draft, host: int, owners: Owners) -> Role:
    body = _serving(draft, host, owners)
    return Role(f"server-{host}", (host,), tuple(body), lanes_of(body), keeps="server")


def _serving(draft: Draft, host: int, owners: Owners) -> list[Instruction]:
    """What a server does with its buckets."""
    mine = [i for i, owner in enumerate(owners) if owner == host]
    peers = [worker for worker in draft.workers if worker != host]
    body: list[Instruction] = []
    if draft.weight and mine and not means_of(draft):
        left = [After(one.name) for one in _told(draft, host, owners)] if host in draft.workers else []
        body += _combined(draft, host, "W", WEIGHT, left)
    for n, i in enumerate(mine):
        bucket = draft.buckets[i].name
        before = _before(draft, mine[:n]) if draft.sync.wire.order is Priority.FIFO else None
        asked = () if before is None else (After(f"C{before}"),)
        if i in draft.factored:
            body += draft.factored[i].gathered(host, "from", "serve", f"C{i}")
        else:
            body += _combined(draft, host, str(i), bucket, [], asked)
        body += [] if means_of(draft) else scaled(draft, i, "serve", (After(f"C{i}"), After("CW")))
        body += _clipped(draft, mine, owners) if i == mine[-1] else []
        body += _answered(draft, host, i, peers)
    return sorted(body, key=lambda one: isinstance(one.act, Update)) if draft.graph.clip_norm else body


def _before(draft: Draft, earlier: list[int]) -> int | None:
    """The last of a server's `earlier` buckets that must be summed before it asks for the next; None: none must."""
    held = 0
    for n, i in enumerate(reversed(earlier)):
        if n >= AHEAD - 1 and held >= WINDOW:
            return i
        held += draft.buckets[i].size
    return None


def _answered(draft: Draft, host: int, i: int, peers: list[int]) -> list[Instruction]:
    """A server's step and its weights to all workers, or the sum, encoded, with which all of them step. Its own
    backward, if it works too, has read the weights that change."""
    idle = (draft.spent(i),) if host in draft.workers else ()
    bucket, down = draft.buckets[i], downward(draft.sync.wire, draft.buckets[i])
    sent = tuple(After(f"D{i}.{w}", 1) for w in peers)
    if down is None:
        made = [Instruction(f"U{i}", Update(bucket.name), "serve", (After(f"C{i}"), *idle, *sent))]
        act = Send(bucket.name, (0,), f"{bucket.name}.down", Space.PARAMETER)
    else:
        encode = Encode(bucket.name, down.name, held=Space.REST)
        made = [Instruction(f"Y{i}", encode, "serve", (After(f"C{i}"), *sent))]
        act = Send(down.name, (0,), f"{bucket.name}.down", Space.CODED)
    body = [
        *made, *(Instruction(f"D{i}.{w}", replace(act, to=(w,)), f"to{w}", (After(made[0].name),)) for w in peers)
    ]  # fmt: skip
    if down is not None and host in draft.workers:
        body.append(Instruction(f"Q{i}", Decode(bucket.name, down.name, ()), "serve", (After(f"Y{i}"),)))
        body.append(Instruction(f"U{i}", Update(bucket.name), "serve", (After(f"Q{i}"), *idle)))
    return body


def _combined(
    draft: Draft, host: int, label: str, bucket: str, waits: list[After], asked: tuple[After, ...] = ()
) -> list[Instruction]:
    """A bucket of every other worker received, once `asked` are over, and the sum of all, once `waits` are."""
    body: list[Instruction] = []
    coding = None if bucket == WEIGHT else upward(draft.sync.wire, draft.buckets[int(label)])
    act: Combine | Decode = Combine(bucket, draft.workers)
    cargo, space = bucket, Space.INBOX
    if coding is not None:
        act, cargo, space = Decode(bucket, coding.name, draft.workers), coding.name, Space.CODED
    for w in draft.workers:
        if w == host:
            own = _encoding(draft, int(label), True) if coding else ()
            waits = [*waits, After(own[-1].name if own else f"P{label}")]
            continue
        came = Receive(cargo, (w,), f"{bucket}.up", space)
        body.append(Instruction(f"I{label}.{w}", came, f"from{w}", (After(f"C{label}", 1), *asked)))
        waits = [*waits, After(f"I{label}.{w}")]
    body.append(Instruction(f"C{label}", act, "serve", tuple(waits)))
    return body + (heard(label, draft.buckets[int(label)], coding.codec, f"C{label}", "serve") if coding else [])


def _clipped(draft: Draft, mine: list[int], owners: Owners) -> list[Instruction]:
    """With a bound on the norm, one Clip of a server's buckets, on whose norm all servers agree."""
    if not draft.graph.clip_norm:
        return []
    shares, every = {draft.buckets[j].name: 1.0 for j in mine}, tuple(After(f"C{j}") for j in mine)
    return bounded(draft.graph.clip_norm, shares, (tuple(sorted({*owners})),), every, lane="serve", wire="norm")
