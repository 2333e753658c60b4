"""Agreement on weights now and then: all step alone for a period, then what they came to is combined.

compute  F B U | F B U | F B U C0 C1 X0 X1 |     C: what this worker has changed since the weights agreed on last
wire                              A0 A1          X: one step of the outer optimizer with the mean change, by all alike

In fragments, with a lag of one step, so that messages hide behind the next step's computing:

compute  F B U | X1 F B U C0 | F B U X0 | F B U C1 |
wire     A1----'             A0------'             A1---- (merged in the next round)

Changes may be encoded as gradients are: C0 E0 A0 D0 X0 (`coding`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from partita.lowering.agreement import COMPUTE, DATA, lanes_of, program_of, updates
from partita.lowering.coding import Agreement, summed, summing
from partita.lowering.samples import Draft, ReplicaGroup, packed, passes
from partita.plan.sync import AllReduce, Frequency, Outer, Payload, Sync
from partita.program.instruction import After, Instruction, Mix, Scale, Term, Update
from partita.program.layout import Bucket
from partita.program.program import Program, Role
from partita.program.space import Space


def averaged(draft: Draft, steps: int) -> Program:
    """Every worker takes `steps` steps on its own part, then the mean of all weights (DP-26) or of all changes (EX-01)
    enters. A last round that is shorter than fragments, or what comes late, need only steps.

    A period of 1 is exact where the mean commutes with the rule and every worker counts the same.
    """
    sync = draft.sync
    agrees = steps == sync.frequency.period or (sync.frequency.fragments == 1 and not sync.consistency.lag)
    roles = tuple(_averaging(draft, group, steps, agrees) for group in draft.groups)
    linear = draft.graph.optimizer.name == "SGD" and not draft.graph.clip_norm and draft.weight is None
    plain = sync.outer == Outer() and sync.frequency == Frequency() and sync.consistency.lag == 0
    exact = plain and linear and len(draft.groups) == 1
    return program_of(draft, roles, steps=steps, semantics="exact" if exact else "consensus")


def settles(sync: Sync) -> bool:
    """Whether weights still differ after a round, so that a run's end has to bring them together."""
    if sync.payload is Payload.GRADIENT:
        return False
    if not isinstance(sync.through, AllReduce) or sync.payload in (Payload.ELASTIC, Payload.DUAL):
        return True
    partial = sync.frequency.fragments > 1 or sync.consistency.lag > 0 or sync.outer.keep > 0
    return sync.frequency.period == 0 or partial


def local_step(draft: Draft, group: ReplicaGroup, step: int, between: Sequence[Instruction] = ()) -> list[Instruction]:
    """A worker's own step `step` of the round, on its part of that minibatch alone; what is `between` changes the
    gradients once they are complete."""
    direct = draft.plan.schedule.microbatches == 1 and not between
    works = passes(draft, group, step, group.count, direct=direct)
    body = [work.instruction for work in works] if direct else packed(draft, works, {}, f".{step}")
    ends = updates(draft, {}, part=f"{step}.0" if direct else "", tag=f".{step}")
    if between:
        ends.sort(key=lambda one: isinstance(one.act, Update))
        first = next(k for k, one in enumerate(ends) if isinstance(one.act, Update))
        ends[first:first] = between
    return body + ends


def fragments_of(buckets: tuple[Bucket, ...], count: int) -> tuple[tuple[int, ...], ...]:
    """The buckets in `count` runs of about equal bytes; a bucket belongs where its middle lies."""
    total = sum(bucket.size for bucket in buckets)
    ends = accumulate(bucket.size for bucket in buckets)
    places = [int((end - bucket.size / 2) * count / total) for bucket, end in zip(buckets, ends, strict=True)]
    return tuple(tuple(i for i, place in enumerate(places) if place == f) for f in range(count))


def taken_at(frequency: Frequency, fragment: int) -> int:
    """The step of a round after which a fragment's changes are taken: those of the last one at its end."""
    return -(-(fragment + 1) * frequency.period // frequency.fragments) - 1


def _averaging(draft: Draft, group: ReplicaGroup, steps: int, agrees: bool) -> Role:
    sync, body = draft.sync, list[Instruction]()
    fragments = fragments_of(draft.buckets, sync.frequency.fragments) if agrees and sync.frequency.period else ()
    last = {
        f: steps - 1 if sync.frequency.fragments == 1 else taken_at(sync.frequency, f) for f in range(len(fragments))
    }
    for step in range(steps):
        own = local_step(draft, group, step)
        body += own
        named = {one.act.bucket: After(one.name) for one in own if isinstance(one.act, Update)}
        entering = [f for f, at in last.items() if (at + sync.consistency.lag) % steps == step]
        leaving = [f for f, at in last.items() if at == step]
        if sync.consistency.lag:
            body += [
                one for f in entering for one in _entering(draft, fragments[f], last[f] + sync.consistency.lag >= steps)
            ]
        body += [one for f in leaving for one in _leaving(draft, fragments[f], named)]
        if not sync.consistency.lag:
            body += [one for f in entering for one in _entering(draft, fragments[f], False)]
    return Role(group.name, group.ranks, tuple(body), tuple(dict.fromkeys((COMPUTE, DATA, *lanes_of(body)))))


def _agreement(draft: Draft, i: int, ready: str = "") -> Agreement:
    """How bucket `i` of the weights, or what has changed of it, is summed over all, when `ready` is done."""
    return summed(summing(draft), str(i), draft.buckets[i], "wire", ready)


def _leaving(draft: Draft, fragment: tuple[int, ...], updated: dict[str, After]) -> list[Instruction]:
    """A fragment's weights, or what has changed of them, summed over all."""
    taken, sums = list[Instruction](), list[Instruction]()
    for i in fragment:
        name = draft.buckets[i].name
        ready = updated[name]
        if draft.sync.payload is Payload.DELTA:
            change = Mix(name, Space.DELTA, (Term(Space.ANCHOR), Term(Space.PARAMETER, (-1.0,))))
            taken.append(Instruction(f"C{i}", change, "compute", (ready,)))
            ready = After(f"C{i}")
        agreement = _agreement(draft, i, ready.name)
        taken += agreement.first
        sums += agreement.then
    return taken + sums


def _entering(draft: Draft, fragment: tuple[int, ...], later: bool) -> list[Instruction]:
    """What was summed enters the weights, where it is `later` in the next round."""
    found, sync, count = list[Instruction](), draft.sync, len(draft.workers)
    for i in fragment:
        name, ready = draft.buckets[i].name, (After(_agreement(draft, i).last, int(later)),)
        if sync.payload is Payload.PARAMETER:
            found.append(Instruction(f"X{i}", Scale(name, 1 / count), "compute", ready))
            continue
        outer = outer_step(name, sync.outer, 1 / count, int(later))
        found += [Instruction(f"{'VOX'[3 - len(outer) + j]}{i}", act, "compute", ready) for j, act in enumerate(outer)]
    return found


def outer_step(bucket: str, outer: Outer, share: float, lag: int) -> list[Mix]:
    """SGD on the weights agreed on last, with `share` times the summed changes for a gradient, and its result taken."""
    anchor, delta, velocity = Term(Space.ANCHOR), Space.DELTA, Space.VELOCITY
    straight = Term(delta, (-outer.rate * share,))
    steps = list[Mix]()
    if outer.momentum:
        gathered = (Term(velocity, (outer.momentum,)), Term(delta, (share,)))
        steps.append(Mix(bucket, velocity, gathered, lag))
        factor = outer.rate * (outer.momentum if outer.nesterov else 1.0)
        pushed = (anchor, Term(velocity, (-factor,)), *((straight,) if outer.nesterov else ()))
    else:
        pushed = (anchor, straight)
    steps.append(Mix(bucket, Space.ANCHOR, pushed, lag))
    own = (Term(Space.PARAMETER, (outer.keep,)),) if outer.keep else ()
    return [*steps, Mix(bucket, Space.PARAMETER, (*own, Term(Space.ANCHOR, (1 - outer.keep,))), lag)]
