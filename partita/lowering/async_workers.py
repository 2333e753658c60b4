"""Workers of parameter servers that do not wait for all: gradients, or changes of weights, pushed as they are ready.

A round is drawn in `async_servers`. Besides, there are:

bounded        C after all P: a Clip of the worker's own, ahead of E and S
encoded        E after P, S of the coding
changes        K keeps the weights, U is a step of the worker's own, G the difference, which S pushes
late ones drop a worker leaves out what is left of a round once G has the weights of the next version, which wait in
               its inbox until T
"""

from __future__ import annotations

from dataclasses import replace

from partita.lowering.owners import Owners
from partita.lowering.push_pull import PushPull, drops, tags_of
from partita.lowering.samples import ComputeStep, Draft, ReplicaGroup, packed, passes
from partita.plan.sync import Payload
from partita.program.instruction import After, Clip, Instruction, Load, Mark, Mix, Pack, Scale, Term, Update
from partita.program.layout import WEIGHT
from partita.program.space import Space


def pushing(draft: Draft, group: ReplicaGroup, owners: Owners) -> list[Instruction]:
    """A round: `fetch` pushes, each of the sum over `period` minibatches, then the new weights."""
    tags, delta, step = tags_of(draft), draft.sync.payload is Payload.DELTA, 0
    ways = [PushPull(draft, i, group.ranks[0], owner) for i, owner in enumerate(owners)]
    local, bounded = {way.bucket for way in ways if way.local and not delta}, bool(draft.graph.clip_norm)
    body, share = list[Instruction](), group.count / draft.batch
    for push, tag in enumerate(tags):
        before, works = tags[push - 1], list[ComputeStep]()
        ready = [_ready(draft, way, tag, After(f"S{way.i}{before}", int(push == 0)), share) for way in ways]
        used = [f"U{way.i}" if delta else way.gone(before) for way in ways]
        free: dict[str, tuple[After, ...]] = {str(i): (After(name, int(push == 0)),) for i, name in enumerate(used)}
        for left in reversed(range(draft.pushes[push])):
            works += _gathering(draft, group, step, last=not left)
            step += 1
        needs = {work.instruction.name: work.needs for work in works}
        for one in packed(draft, works, free, tag):
            act = one.act
            here = replace(act, space=Space.DELTA) if isinstance(act, Pack) and act.bucket in local else act
            body += _read(draft, [ways[i] for i in needs.get(one.name, ())], replace(one, act=here))
            for way in ways:
                if one.name == f"P{draft.last[way.i] if delta else way.i}{tag}":
                    body += _weighed(draft, group, way, tag)
                    body += [] if bounded else ready[way.i]
        if bounded:
            body += [_bounded(draft, group, ways, tag), *(one for each in ready for one in each)]
    body += [one for tag in tags for way in ways for one in way.sent(tag)]
    body += [one for way in ways for one in way.taken()]
    if drops(draft):
        body.append(Instruction("G", Mark(), "newer", tuple(After(way.read) for way in ways)))
    return body


def _ready(draft: Draft, way: PushPull, tag: str, sent: After, share: float) -> list[Instruction]:
    """For pushes of changes, make the change, by a step for the worker's `share` of the minibatch, once backward no
    longer reads the weights; where there is a codec, its coding, once the last one is `sent`."""
    coded = list(way.encoded(tag, sent))
    if draft.sync.payload is not Payload.DELTA:
        return coded
    change = Mix(way.bucket, Space.DELTA, (Term(Space.PARAMETER), Term(Space.ANCHOR, (-1.0,))))
    return [
        Instruction(f"K{way.i}", Mix(way.bucket, Space.ANCHOR, (Term(Space.PARAMETER),)), "compute"),
        Instruction(f"U{way.i}", Update(way.bucket, share=share), "compute"),
        Instruction(f"G{way.i}", change, "compute", (After(way.gone(""), 1),)),
        *coded,
    ]


def _read(draft: Draft, needs: list[PushPull], one: Instruction) -> list[Instruction]:
    """An instruction, after the weights that it is the first to read. Where late work is dropped, these wait in the
    inbox until then, and once those of the next version have come, the rest of this round is skipped."""
    if not drops(draft):
        return [replace(one, after=one.after + tuple(After(way.read, 1) for way in needs))]
    found = []
    for way in needs:
        taken = Mix(way.bucket, Space.PARAMETER, (Term(Space.INBOX, peer=(way.host,)),))
        found.append(Instruction(f"T{way.i}", taken, "compute", (After(way.read, 1),)))
    return [*found, one if isinstance(one.act, Load) else replace(one, unless=After("G"))]


def _gathering(draft: Draft, group: ReplicaGroup, step: int, *, last: bool) -> list[ComputeStep]:
    """A minibatch of a push, of which only the last completes the gradients."""
    return [replace(work, last=work.last and last) for work in passes(draft, group, step)]


def _weighed(draft: Draft, group: ReplicaGroup, way: PushPull, tag: str) -> list[Instruction]:
    """For weighted losses, divide a bucket's gradients by the weight of the rank's own samples."""
    if not draft.weight:
        return []
    space = Space.GRADIENT if draft.sync.payload is Payload.DELTA else way.space
    mean = Scale(way.bucket, group.count / draft.batch, space, WEIGHT)
    return [Instruction(f"W{way.i}{tag}", mean, "compute", (After(f"P{way.i}{tag}"),))]


def _bounded(draft: Draft, group: ReplicaGroup, ways: list[PushPull], tag: str) -> Instruction:
    """One Clip of a worker's contribution, on the norm of the mean over its own samples: nobody has the minibatch's."""
    ready = tuple(After(f"{'W' if draft.weight else 'P'}{way.i}{tag}") for way in ways)
    clip = Clip(tuple(way.bucket for way in ways), draft.graph.clip_norm * group.count / draft.batch)
    return Instruction(f"C{tag}", clip, "compute", ready, unless=After("G") if drops(draft) else None)
