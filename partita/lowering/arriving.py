"""Agreement through servers that wait for nobody, or for some: gradients enter as they come.

worker  compute  F0 F1 B0 P0 B1 P1            | F of its next round, each part after the R of what it reads
        push           S0-- S1----
        pull                    R0-- R1----
server  from w         I0-- I1----                 a lane for each worker
        serve               U0 V0 U1 V1            U of all in the order of their arrival, each V ahead of others' U
        to w                   D0-- D1----         from the copy that V made: the weights go on changing

bounded delay   V.w of round r after U of every other worker of round r - staleness
staleness 0     besides, U of round r after V of all of round r - 1: nobody reads what comes later
elastic         a worker's own steps, then D = rate (x - centre) with the centre of the answer before, x -= D, push D
late ones drop  E after `need` of all U, U unless E is done, W the step, Z the sum empty again; W after E and A, all V
                of round r - 1, or after N, every bucket's E: whoever still reads mixed versions then has no part in
                the round. A worker leaves out what is left of a round once G has the weights of the next version,
                which wait in its inbox until T
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from partita.graph.graph import Graph
from partita.lowering.agreement import COMPUTE, DATA, program_of
from partita.lowering.elastic import own_steps
from partita.lowering.keys import owners_of
from partita.lowering.quorum import counted, in_consensus, mastered
from partita.lowering.samples import Crew, Draft, Work, packed, passes
from partita.plan.plan import Plan
from partita.plan.sync import Servers, Sync, What
from partita.program.instruction import (
    After,
    Apply,
    Collective,
    Instruction,
    Kind,
    Load,
    Mark,
    Mix,
    Receive,
    Scale,
    Send,
    Snapshot,
    Space,
    Term,
    Update,
)
from partita.program.program import WEIGHT, WORD, Lane, Policy, Program, Role

Owners = tuple[int, ...]
SERVE = Lane("serve", Policy.ARRIVAL)


CORRECTIONS: Final = ("delay", "staleness")


def waits_for_all(plan: Plan) -> bool:
    """Whether no server goes ahead of a worker: every update is the sum of all workers' gradients of one step."""
    sync = plan.sync[0] if plan.sync else Sync()
    tight = sync.tight
    ahead = tight.staleness or tight.need or any(c.name != "momentum" for c in plan.update.corrections)
    return not (isinstance(sync.through, Servers) and (ahead or sync.what is What.DELTA))


def loose_gaps(graph: Graph, plan: Plan) -> Iterator[tuple[bool, str]]:
    """(whether such a plan asks for it, what) of all that is not brought about yet where servers go ahead."""
    sync, elastic, dual = plan.sync[0], plan.sync[0].what is What.ELASTIC, counted(plan.sync[0])
    unknown = [c.name for c in plan.update.corrections if c.name not in (("nesterov",) if elastic else CORRECTIONS)]
    assert isinstance(sync.through, Servers)
    yield sync.through.levels * sync.through.replicas > 1, "servers in levels or replicas"
    yield sync.tight.lag > 0, f"lag {sync.tight.lag} where no gradients are all-reduced"
    yield sync.often.period == 0, "agreement once at the end (period 0)"
    outer = replace(sync.outer, rate=1.0) if elastic else replace(sync.outer, penalty=0.0) if dual else sync.outer
    yield sync.often.fragments > 1 or outer != Sync().outer, "fragments or outer optimizers at such servers"
    yield not sync.through.own, "servers that go ahead on the devices of workers"
    kinds = (What.GRADIENT, What.DELTA, What.ELASTIC, What.DUAL)
    yield sync.what not in kinds, f"servers that go ahead with {sync.what}"
    yield dual and sync.through.count > 1, f"a quorum at each of {sync.through.count} servers"
    yield dual and drops(sync), "a quorum that drops who comes late"
    yield sync.what is What.DELTA and sync.often.fetch * sync.often.period > 1, "increments pushed now and then"
    yield (elastic or dual) and sync.often.fetch > 1, "a centre that is fetched now and then"
    summed = sync.tight.need > 0 and sync.what is not What.GRADIENT
    yield summed and not dual, "increments summed before they enter"
    dropped = drops(sync)
    mixed = sync.tight.staleness != 0 or sync.often.period * sync.often.fetch > 1 or plan.update.corrections
    yield dropped and bool(mixed), "late gradients that are dropped, of several versions or steps"
    yield bool(unknown), f"the correction {unknown[0]!r}" if unknown else ""
    yield bool(graph.clip_norm), "a bound on the norm of gradients (clip_norm) under servers that go ahead"
    gathered = graph.weight is not None and sync.often.period > 1 and not (elastic or dual)
    yield gathered, "weighted losses gathered over several minibatches"
    yield bool(plan.before), "phases before servers that go ahead"


def drops(sync: Sync) -> bool:
    """Whether gradients beyond the first `need` of a step are left out."""
    return sync.tight.need > 0 and sync.tight.late == "drop"


def arriving(draft: Draft, plan: Plan) -> Program:
    """Servers of which each worker gets an answer of its own: asynchronous (DP-09, DP-10), with bounded delay (DP-14),
    stepping once several have come (DP-16), or with the first of a step's gradients only (DP-11)."""
    assert isinstance(draft.sync.through, Servers)
    owners, often = owners_of(draft, draft.servers), draft.sync.often
    own = {What.ELASTIC: tied, What.DUAL: in_consensus}.get(draft.sync.what, _worker)
    bodies = [(crew.name, crew.ranks, own(draft, crew, owners), "model") for crew in draft.crews]
    bodies += [(f"server-{host}", (host,), _server(draft, host, owners), "server") for host in draft.servers]
    roles = [Role(name, ranks, tuple(body), lanes_of(body), keeps) for name, ranks, body, keeps in bodies]
    semantics = "lossy" if drops(draft.sync) else "delayed" if own is _worker else "consensus"
    return program_of(draft, tuple(roles), steps=often.period * often.fetch, semantics=semantics)


def tags_of(draft: Draft) -> tuple[str, ...]:
    """What marks each push of a round."""
    fetch = draft.sync.often.fetch
    return tuple(f".{push}" for push in range(fetch)) if fetch > 1 else ("",)


def _worker(draft: Draft, crew: Crew, owners: Owners) -> list[Instruction]:
    """A round: `fetch` pushes of the sum over `period` minibatches each, then the new weights."""
    period, tags, delta = draft.sync.often.period, tags_of(draft), draft.sync.what is What.DELTA
    everything = range(len(draft.buckets))
    body: list[Instruction] = []
    for push, tag in enumerate(tags):
        used = "U{}" if delta else f"S{{}}{tags[push - 1]}"
        free: dict[str, tuple[After, ...]] = {str(i): (After(used.format(i), int(push == 0)),) for i in everything}
        works = [
            work for k in range(period) for work in _gathering(draft, crew, push * period + k, last=k == period - 1)
        ]
        needs = {work.instruction.name: work.needs for work in works}
        for one in packed(draft, works, free, tag):
            body += _read(draft, needs.get(one.name, ()), owners, one)
        body += _made_ready(draft, crew, tag)
    back = After(body[-1].name)
    made = "G" if delta else "W" if draft.weight else "P"
    for tag in tags:
        for i, bucket in enumerate(draft.buckets):
            space = Space.DELTA if delta else Space.GRADIENT
            act = Send(bucket.name, (owners[i],), f"{bucket.name}.up{tag}", space)
            body.append(Instruction(f"S{i}{tag}", act, f"push{owners[i]}", (After(f"{made}{i}{tag}"),)))
    dropped = drops(draft.sync)
    for i, bucket in enumerate(draft.buckets):
        down = Receive(bucket.name, (owners[i],), f"{bucket.name}.down", Space.INBOX if dropped else Space.PARAMETER)
        body.append(Instruction(f"R{i}", down, f"pull{owners[i]}", (After(f"T{i}"),) if dropped else (back,)))
    if dropped:
        body.append(Instruction("G", Mark(), "word", tuple(After(f"R{i}") for i in everything)))
    return body


def tied(draft: Draft, crew: Crew, owners: Owners) -> list[Instruction]:
    """A round: `period` steps of the worker's own, then the spring between it and the centre of the last answer; what
    it gives way is what the centre gets (DP-19, asynchronous)."""
    body, rate = own_steps(draft, crew, draft.sync.often.period), draft.sync.outer.rate
    for i, bucket in enumerate(draft.buckets):
        name, host = bucket.name, owners[i]
        pull = Mix(name, Space.DELTA, (Term(Space.PARAMETER, (rate,)), Term(Space.ANCHOR, (-rate,))))
        taken = Mix(name, Space.PARAMETER, (Term(Space.PARAMETER), Term(Space.DELTA, (-1.0,))))
        push, back = (
            Send(name, (host,), f"{name}.up", Space.DELTA),
            Receive(name, (host,), f"{name}.down", Space.ANCHOR),
        )
        body += [
            Instruction(f"D{i}", pull, "compute", (After(f"R{i}", 1), After(f"S{i}", 1))),
            Instruction(f"X{i}", taken, "compute"),
            Instruction(f"S{i}", push, f"push{host}", (After(f"D{i}"),)),
            Instruction(f"R{i}", back, f"pull{host}", (After(f"D{i}"),)),
        ]
    return body


def _read(draft: Draft, needs: tuple[int, ...], owners: Owners, one: Instruction) -> list[Instruction]:
    """An instruction after the weights that it is the first to read. Where late work is dropped, they wait in the inbox
    until then, and once those of the next version are there, what is left of this one is not done."""
    if not drops(draft.sync):
        return [replace(one, after=one.after + tuple(After(f"R{i}", 1) for i in needs))]
    found = []
    for i in needs:
        taken = Mix(draft.buckets[i].name, Space.PARAMETER, (Term(Space.INBOX, peer=(owners[i],)),))
        found.append(Instruction(f"T{i}", taken, "compute", (After(f"R{i}", 1),)))
    return [*found, one if isinstance(one.act, Load) else replace(one, unless=After("G"))]


def _gathering(draft: Draft, crew: Crew, step: int, *, last: bool) -> list[Work]:
    """A minibatch of a push, of which only the last completes the gradients."""
    return [replace(work, last=work.last and last) for work in passes(draft, crew, step)]


def _made_ready(draft: Draft, crew: Crew, tag: str) -> list[Instruction]:
    """After backward: a weighted loss's gradients are divided by the own samples' weight; increments are made."""
    found: list[Instruction] = []
    for i, bucket in enumerate(draft.buckets):
        if draft.weight:
            mean = Scale(bucket.name, crew.count / draft.batch, Space.GRADIENT, WEIGHT)
            found.append(Instruction(f"W{i}{tag}", mean, "compute", (After(f"P{i}{tag}"),)))
    if draft.sync.what is What.DELTA:
        for i, bucket in enumerate(draft.buckets):
            keep = Mix(bucket.name, Space.ANCHOR, (Term(Space.PARAMETER),))
            change = Mix(bucket.name, Space.DELTA, (Term(Space.PARAMETER), Term(Space.ANCHOR, (-1.0,))))
            found.append(Instruction(f"K{i}", keep, "compute"))
            found.append(Instruction(f"U{i}", Update(bucket.name), "compute"))
            found.append(Instruction(f"G{i}", change, "compute", (After(f"S{i}", 1),)))
    return found


def _server(draft: Draft, host: int, owners: Owners) -> list[Instruction]:
    mine = [i for i, owner in enumerate(owners) if owner == host]
    if counted(draft.sync):
        return mastered(draft, mine)
    tags, body = tags_of(draft), list[Instruction]()
    share = {rank: crew.count / draft.batch for crew in draft.crews for rank in crew.ranks}
    for push, tag in enumerate(tags):
        for i in mine:
            bucket = draft.buckets[i].name
            for w in draft.workers:
                act = Receive(bucket, (w,), f"{bucket}.up{tag}", Space.INBOX)
                free = After(f"U{i}.{w}{tags[push - 1]}", int(push == 0))
                body.append(Instruction(f"I{i}.{w}{tag}", act, f"from{w}", (free,)))
                merge = _merge(draft, bucket, w, share[w])
                waits = (After(f"I{i}.{w}{tag}"), *_withheld(draft, i, push))
                late = After(f"E{i}") if drops(draft.sync) else None
                body.append(Instruction(f"U{i}.{w}{tag}", merge, "serve", waits, unless=late, priority=1))
    if drops(draft.sync):
        body += _closing(draft, mine, tuple(sorted({*owners})))
    for i in mine:
        bucket = draft.buckets[i].name
        for w in draft.workers:
            ready = (After(f"D{i}.{w}", 1), *_bounded(draft, i, w))
            body.append(Instruction(f"V{i}.{w}", Snapshot(bucket, w), "serve", ready))
            back = Send(bucket, (w,), f"{bucket}.down", Space.OUTBOX)
            body.append(Instruction(f"D{i}.{w}", back, f"to{w}", (After(f"V{i}.{w}"),)))
    return body


def _closing(draft: Draft, mine: list[int], hosts: Owners) -> list[Instruction]:
    """A step of each bucket with the first gradients, as soon as it cannot mix versions: all workers have read the one
    before, or no bucket of any server takes more of this round."""
    body: list[Instruction] = []
    for i in mine:
        came = tuple(After(f"U{i}.{w}") for w in draft.workers)
        read = tuple(After(f"V{i}.{w}", 1) for w in draft.workers)
        body.append(Instruction(f"E{i}", Mark(), "serve", came, need=draft.sync.tight.need))
        body.append(Instruction(f"A{i}", Mark(), "serve", read))
    closed = tuple(After(f"E{i}") for i in mine)
    meet = Collective(Kind.ALL_REDUCE, WORD, (hosts,), Space.PARAMETER)
    body.append(Instruction("N", meet if len(hosts) > 1 else Mark(), "word" if len(hosts) > 1 else "serve", closed))
    for i in mine:
        bucket, ready = draft.buckets[i].name, (After(f"E{i}"), After(f"A{i}"), After("N"))
        body.append(Instruction(f"W{i}", Update(bucket), "serve", ready, need=2))
        body.append(Instruction(f"Z{i}", Scale(bucket, 0.0, Space.GRADIENT), "serve", (After(f"W{i}"),)))
    return body


def _merge(draft: Draft, bucket: str, worker: int, share: float) -> Apply:
    sync, workers = draft.sync, len(draft.workers)
    need, delta = sync.tight.need or 1, sync.what is not What.GRADIENT
    if drops(sync):
        return Apply(bucket, worker, share, need, need, drop=True, scale=workers / need)
    corrections = () if delta else draft.plan.update.corrections
    return Apply(bucket, worker, share, workers, need, delta, corrections=corrections)


def _bounded(draft: Draft, i: int, worker: int) -> tuple[After, ...]:
    """What an answer waits for: the worker's own update, and with a bound everybody's of so many rounds ago; where
    late ones are dropped, the version."""
    if drops(draft.sync):
        return (After(f"W{i}"),)
    staleness, last = draft.sync.tight.staleness, tags_of(draft)[-1]
    others = [w for w in draft.workers if w != worker] if staleness >= 0 else []
    return (After(f"U{i}.{worker}{last}"), *(After(f"U{i}.{w}{last}", staleness) for w in others))


def _withheld(draft: Draft, i: int, push: int) -> tuple[After, ...]:
    """With staleness 0 an update waits until all have read what was there before its round."""
    held = draft.sync.tight.staleness == 0 and push == 0 and not drops(draft.sync)
    return tuple(After(f"V{i}.{w}", 1) for w in draft.workers) if held else ()


def handed_out(draft: Draft) -> Program:
    """The end of a run: every worker gets what the servers have come to."""
    owners, body = owners_of(draft, draft.servers), list[Instruction]()
    for i, bucket in enumerate(draft.buckets):
        last = Receive(bucket.name, (owners[i],), f"{bucket.name}.last")
        body.append(Instruction(f"R{i}", last, f"pull{owners[i]}"))
    roles = [Role(crew.name, crew.ranks, tuple(body), lanes_of(body)) for crew in draft.crews]
    for host in draft.servers:
        body = [
            Instruction(f"D{i}.{w}", Send(bucket.name, (w,), f"{bucket.name}.last", Space.PARAMETER), f"to{w}")
            for i, bucket in enumerate(draft.buckets)
            for w in draft.workers
            if owners[i] == host
        ]
        roles.append(Role(f"server-{host}", (host,), tuple(body), lanes_of(body), keeps="server"))
    return program_of(draft, tuple(roles), steps=0, semantics="delayed")


def lanes_of(body: list[Instruction]) -> tuple[Lane, ...]:
    """The lanes that instructions name; servers serve in the order of arrival."""
    known = {lane.name: lane for lane in (COMPUTE, DATA, SERVE)}
    return tuple(known.get(name, Lane(name)) for name in dict.fromkeys(i.lane for i in body))
