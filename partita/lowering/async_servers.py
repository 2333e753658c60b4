"""Parameter servers that do not wait for all workers: contributions enter in the order of their arrival.

worker  compute  F0 F1 B0 P0 B1 P1            | F of its next round, each part after the R of what it reads
        push           S0-- S1----
        pull                 R0--  R1----          asked for once backward has read what they replace
server  from w         I0-- I1----                 a lane for each worker
        serve               U0 V0 U1 V1            U of all in the order of their arrival, each V ahead of others' U
        to w                   D0-- D1----         from the copy that V made: the weights go on changing

bounded delay   V.w of round r after U of every other worker of round r - staleness
staleness 0     besides, U of round r after V of all of round r - 1: nobody reads what comes later
encoded         X after I: decoded into that worker's inbox
late ones drop  E after `need` of all U, U unless E is done, Y the step, Z the sum empty again; Y after E and A, all V
                of round r - 1, or after N, every bucket's E on all servers: whoever still reads mixed versions then
                has no part in the round

On devices of workers a server has weights of its own (`push_pull`), and serves its rank's worker by copies. What
workers do is in `async_workers`, `elastic` and `quorum`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from partita.graph.graph import Graph
from partita.lowering.agreement import SERVE, lanes_of, program_of
from partita.lowering.async_workers import pushing
from partita.lowering.coding_gaps import coded_gaps
from partita.lowering.elastic import tied
from partita.lowering.negotiation import heard, said
from partita.lowering.owners import Owners, owners_of
from partita.lowering.push_pull import PushPull, drops, served_in, tags_of
from partita.lowering.quorum import counted, in_consensus, master_of
from partita.lowering.samples import Draft, separate
from partita.plan.plan import Plan
from partita.plan.sync import Outer, Payload, Servers, unread
from partita.program.instruction import After, Apply, Instruction, Mark, Mix, Receive, Scale, Send, Term, Update
from partita.program.program import Program, Role
from partita.program.space import Space

CORRECTIONS: Final = ("delay", "staleness")


def loose_gaps(graph: Graph, plan: Plan) -> Iterator[tuple[bool, str]]:
    """(whether the plan asks for it, what) of all that is not built yet for such servers."""
    sync, elastic, dual = plan.sync[0], plan.sync[0].payload is Payload.ELASTIC, counted(plan.sync[0])
    known = {Payload.GRADIENT: CORRECTIONS, Payload.ELASTIC: ("nesterov",)}.get(sync.payload, ())
    unknown = [c.name for c in plan.update.corrections if c.name not in known]
    assert isinstance(sync.through, Servers)
    yield sync.through.levels * sync.through.replicas > 1, "servers in levels or replicas"
    yield sync.consistency.lag > 0, f"lag {sync.consistency.lag} where no gradients are all-reduced"
    yield sync.frequency.period == 0, "agreement once at the end (period 0)"
    ignored = unread(sync.outer, sync.payload) if elastic or dual else sync.outer != Outer()
    yield sync.frequency.fragments > 1 or bool(ignored), "fragments or outer optimizers at such servers"
    yield not sync.through.own and (elastic or dual), "a centre on the devices of workers"
    kinds = (Payload.GRADIENT, Payload.DELTA, Payload.ELASTIC, Payload.DUAL)
    yield sync.payload not in kinds, f"servers that go ahead with {sync.payload}"
    yield dual and sync.through.count > 1, f"a quorum at each of {sync.through.count} servers"
    dropped = sync.consistency.need > 0 and sync.consistency.late == "drop"
    yield dual and dropped, "a quorum that drops who comes late"
    yield (
        sync.payload is Payload.DELTA and sync.frequency.fetch * sync.frequency.period > 1,
        "increments pushed now and then",
    )
    yield (elastic or dual) and sync.frequency.fetch > 1, "a centre that is fetched now and then"
    summed = sync.consistency.need > 0 and sync.payload is not Payload.GRADIENT
    yield summed and not dual, "increments summed before they enter"
    mixed = (
        sync.consistency.staleness != 0 or sync.frequency.period * sync.frequency.fetch > 1 or plan.update.corrections
    )
    yield dropped and bool(mixed), "late gradients that are dropped, of several versions or steps"
    yield bool(unknown), f"the correction {unknown[0]!r} with payload={sync.payload}" if unknown else ""
    bounds = bool(graph.clip_norm) and not (elastic or dual)
    yield bounds and sync.frequency.period > 1, "a bound on the norm (clip_norm) of gradients of several minibatches"
    yield bounds and not sync.through.own, "a bound on the norm (clip_norm) of gradients served on workers' devices"
    gathered = graph.weight is not None and sync.frequency.period > 1 and not (elastic or dual)
    yield gathered, "weighted losses gathered over several minibatches"
    yield bool(plan.before), "phases before servers that go ahead"
    yield from coded_gaps(plan, dropped)


def asynchronous(draft: Draft) -> Program:
    """Servers that answer each worker by itself: asynchronous (DP-09, DP-10), with bounded delay (DP-14), with a step
    after several gradients (DP-16), or with the first gradients of a step only (DP-11)."""
    owners = owners_of(draft, draft.servers)
    own = {Payload.ELASTIC: tied, Payload.DUAL: in_consensus}.get(draft.sync.payload, pushing)
    groups = [group for one in draft.groups for group in separate(one, draft.servers)]
    working = {group.ranks: (group.name, own(draft, group, owners)) for group in groups}
    serving: dict[Owners, tuple[str, list[Instruction]]] = {
        (host,): (f"server-{host}", _server(draft, host, owners)) for host in draft.servers
    }
    roles = []
    for ranks in dict.fromkeys((*working, *serving)):
        parts = [of[ranks] for of in (working, serving) if ranks in of]
        body = [one for _, part in parts for one in part]
        keeps = "model" if ranks in working else "server"
        roles.append(Role("-".join(name for name, _ in parts), ranks, tuple(body), lanes_of(body, SERVE), keeps))
    semantics = "lossy" if drops(draft) or draft.sync.wire.codecs else "delayed" if own is pushing else "consensus"
    return program_of(draft, tuple(roles), steps=sum(draft.pushes), semantics=semantics)


def _server(draft: Draft, host: int, owners: Owners) -> list[Instruction]:
    mine = [i for i, owner in enumerate(owners) if owner == host]
    if counted(draft.sync):
        return master_of(draft, mine)
    tags, body = tags_of(draft), list[Instruction]()
    share = {rank: group.count / draft.batch for group in draft.groups for rank in group.ranks}
    ways = [PushPull(draft, i, w, host) for i in mine for w in draft.workers]
    for push, tag in enumerate(tags):
        for way in ways:
            name = f"U{way.i}.{way.worker}"
            body += way.received(tag, tags[push - 1], int(push == 0))
            merge = _merge(draft, way, share[way.worker], draft.pushes[push])
            waits = (After(way.came(tag)), *_withheld(draft, way.i, push))
            late = After(f"E{way.i}") if drops(draft) else None
            body.append(Instruction(f"{name}{tag}", merge, "serve", waits, unless=late, priority=1))
    if drops(draft) and mine:
        body += _closing(draft, mine, sorted({*owners} - {host}))
    return body + [one for way in ways for one in way.answered(_bounded(draft, way.i, way.worker))]


def _closing(draft: Draft, mine: list[int], others: list[int]) -> list[Instruction]:
    """For each bucket an update with the first gradients, as soon as it cannot mix versions: when all workers have read
    the version before, or when no bucket takes more gradients of this round, which each server tells all others."""
    body: list[Instruction] = []
    for i in mine:
        came = tuple(After(f"U{i}.{w}") for w in draft.workers)
        read = tuple(After(f"V{i}.{w}", 1) for w in draft.workers)
        body.append(Instruction(f"E{i}", Mark(), "serve", came, need=draft.sync.consistency.need))
        body.append(Instruction(f"A{i}", Mark(), "serve", read))
    closed = tuple(After(f"E{i}") for i in mine)
    for other in others:
        body.append(Instruction(f"N.{other}", said(other, "closed"), f"tell{other}", closed))
        body.append(Instruction(f"H.{other}", heard(other, "closed"), f"hear{other}", (After("N", 1),)))
    body.append(Instruction("N", Mark(), "serve", (*closed, *(After(f"H.{other}") for other in others))))
    for i in mine:
        bucket, ready = draft.buckets[i].name, (After(f"E{i}"), After(f"A{i}"), After("N"))
        body.append(Instruction(f"Y{i}", Update(bucket), "serve", ready, need=2))
        body.append(Instruction(f"Z{i}", Scale(bucket, 0.0, Space.GRADIENT), "serve", (After(f"Y{i}"),)))
    return body


def _merge(draft: Draft, way: PushPull, share: float, steps: int) -> Apply:
    sync, workers, into = draft.sync, len(draft.workers), served_in(draft, way.host)
    need, delta = sync.consistency.need or 1, sync.payload is not Payload.GRADIENT
    if drops(draft):
        return Apply(way.bucket, way.worker, share, need, need=need, drop=True, into=into)
    corrections = () if delta else draft.plan.update.corrections
    return Apply(way.bucket, way.worker, share, workers, steps, need, delta, corrections=corrections, into=into)


def _bounded(draft: Draft, i: int, worker: int) -> tuple[After, ...]:
    """What an answer waits for: the worker's own update and, with a bound on staleness, all other workers' updates of
    so many rounds ago; where late gradients are dropped, the new version."""
    if drops(draft):
        return (After(f"Y{i}"),)
    staleness, last = draft.sync.consistency.staleness, tags_of(draft)[-1]
    others = [w for w in draft.workers if w != worker] if staleness >= 0 else []
    return (After(f"U{i}.{worker}{last}"), *(After(f"U{i}.{w}{last}", staleness) for w in others))


def _withheld(draft: Draft, i: int, push: int) -> tuple[After, ...]:
    """With staleness 0, an update waits until all workers have read the version before its round."""
    held = draft.sync.consistency.staleness == 0 and push == 0 and not drops(draft)
    return tuple(After(f"V{i}.{w}", 1) for w in draft.workers) if held else ()


def handed_out(draft: Draft) -> Program:
    """The end of a run: every worker gets the servers' final weights."""
    hosts, roles = draft.servers, []
    owners = owners_of(draft, hosts)
    others = [(host,) for host in hosts if host not in draft.workers]
    for ranks in [*(group.ranks for one in draft.groups for group in separate(one, hosts)), *others]:
        body, host = list[Instruction](), ranks[0]
        for i, bucket in enumerate(draft.buckets):
            name, space = f"{bucket.name}.last", served_in(draft, owners[i])
            last = Instruction(f"R{i}", Receive(bucket.name, (owners[i],), name), f"pull{owners[i]}")
            kept = Instruction(f"R{i}", Mix(bucket.name, Space.PARAMETER, (Term(space),)), "compute")
            if host in draft.workers:
                body.append(kept if host == owners[i] else last)
            for w in draft.workers if host == owners[i] else ():
                if w != host:
                    body.append(Instruction(f"D{i}.{w}", Send(bucket.name, (w,), name, space), f"to{w}"))
        name, keeps = ("worker", "model") if host in draft.workers else ("server", "server")
        roles.append(Role(f"{name}-{host}", ranks, tuple(body), lanes_of(body, SERVE), keeps))
    return program_of(draft, tuple(roles), steps=0, semantics="delayed")
