"""Agreement without servers: none, or the sum of gradients over all."""

from __future__ import annotations

from collections.abc import Iterable

from partita.lowering.coding import Agreement, bounded_alone, codings_of, summed, summing
from partita.lowering.factors import Layer
from partita.lowering.layout import urgent_from
from partita.lowering.negotiation import negotiates
from partita.lowering.norm import SQUARES, WORDS
from partita.lowering.samples import Draft, ReplicaGroup, packed, passes, separate
from partita.program.instruction import After, Clip, Collective, Encode, Instruction, Pack, Scale, Send, Update
from partita.program.layout import WEIGHT
from partita.program.program import Lane, Policy, Program, Role
from partita.program.space import Space

COMPUTE, DATA, WIRE = Lane("compute"), Lane("data"), Lane("wire")
SERVE = Lane("serve", Policy.ARRIVAL)


def lanes_of(body: Iterable[Instruction], *chosen: Lane) -> tuple[Lane, ...]:
    """The lanes that instructions name, in the order in which they do; those `chosen` are no plain ones."""
    known = {lane.name: lane for lane in chosen}
    return tuple(known.get(name, Lane(name)) for name in dict.fromkeys(one.lane for one in body))


def program_of(
    draft: Draft, roles: tuple[Role, ...], *, steps: int = 1, lag: int = 0, semantics: str = "exact"
) -> Program:
    """A Program over the draft's layouts, and the weight's where it is packed."""
    used = {i.act.bucket for role in roles for i in role.instructions if isinstance(i.act, Pack | Collective | Send)}
    buckets = draft.buckets + ((draft.weight,) if draft.weight and WEIGHT in used else ())
    buckets += tuple(one for one in (SQUARES, WORDS) if one.name in used)
    coded = any(role.acts(Encode) for role in roles)
    return Program(
        draft.plan.name, roles, draft.segments, buckets, draft.batch, steps, lag + 1, semantics,
        codings=codings_of(draft) if coded else (),
    )  # fmt: skip


def scaled(draft: Draft, i: int, lane: str, after: tuple[After, ...], lag: int = 0, tag: str = "") -> list[Instruction]:
    """Bucket `i`'s sum over samples made a mean, where the loss is a sum with a weight. What is encoded is one before,
    so that what a codec holds back of minibatches of unequal weight adds up, and its own numbers are those of means."""
    if draft.weight is None:
        return []
    act = Scale(draft.buckets[i].name, space=Space.GRADIENT, by=WEIGHT, lag=lag)
    return [Instruction(f"W{i}{tag}", act, lane, after)]


def applied(
    draft: Draft, i: int, ready: tuple[After, ...], lag: int = 0, part: str = "", tag: str = "", *, mean: bool = False
) -> list[Instruction]:  # fmt: skip
    """The Update of bucket `i`, and what makes its sum a mean before, unless it is one."""
    update = Instruction(f"U{i}{tag}", Update(draft.buckets[i].name, lag, part), "compute", ready)
    return [*([] if part or mean else scaled(draft, i, "compute", ready, lag, tag)), update]


def updates(
    draft: Draft, ready: dict[int, tuple[After, ...]], lag: int = 0, part: str = "", tag: str = "", *,
    mean: bool = False,
) -> list[Instruction]:  # fmt: skip
    """One Update a bucket as soon as it is ready; with a bound on the gradients' norm, all after it is known."""
    found: list[Instruction] = []
    names, bounded = tuple(b.name for b in draft.buckets), draft.graph.clip_norm
    for i in range(len(names)):
        found += applied(draft, i, ready.get(i, ()), lag, part, tag, mean=mean)
    if bounded:
        every = tuple(dict.fromkeys(after for waits in ready.values() for after in waits))
        found.append(Instruction(f"C{tag}", Clip(names, bounded, lag, part), "compute", every))
        found.sort(key=lambda one: (Scale, Clip, Update).index(type(one.act)))
    return found


def means_of(draft: Draft) -> dict[str, list[Instruction]]:
    """What follows each Pack, where sums with a weight are made means before they are encoded."""
    if draft.weight is None or not draft.sync.wire.codecs:
        return {}
    return {f"P{i}": scaled(draft, i, "compute", (After(f"P{i}"), After("AW"))) for i in range(len(draft.buckets))}


def unsynchronised(draft: Draft) -> Program:
    """Workers that never agree (one, or as many as the mesh has); updates take gradients where backward left them."""
    roles = []
    for group in draft.groups:
        direct = draft.plan.schedule.microbatches == 1
        works = passes(draft, group, direct=direct)
        body = [work.instruction for work in works] if direct else packed(draft, works, {})
        body += updates(draft, {}, part="0.0" if direct else "")
        roles.append(Role(group.name, group.ranks, tuple(body), (COMPUTE, DATA)))
    return program_of(draft, tuple(roles))


def all_reduced(draft: Draft) -> Program:
    """Gradients summed over all workers, bucket by bucket while backward goes on (DP-02, DP-34), each applied just
    before the next forward pass reads it.

    compute   U1 F0 ..... U0 F1 B0 P0 B1 P1 | U1 F0 .. U0 F1       forward reads bucket 1 first
    wire      ------A0-----------     A1----|---A0--------         A0 is due when F1 needs it, not when backward ends
    lag 1     the same, each U with the sum of one round earlier (DP-30)

    The weight of a weighted loss is summed first, while backward goes on: F PW B0 P0 ..., AW A0 ..., and W0 before U0;
    with a codec before E0.
    """
    lag, first = draft.sync.consistency.lag, draft.workers[:1] if negotiates(draft.sync) else ()
    groups = [group for one in draft.groups for group in separate(one, draft.workers if draft.factored else first)]
    return program_of(
        draft,
        tuple(_summing(draft, group, lag, wires_of(draft)) for group in groups),
        lag=lag,
        semantics="lossy" if draft.sync.wire.codecs else "delayed" if lag else "exact",
    )


def wires_of(draft: Draft) -> tuple[str, ...]:
    """The lane of each bucket's messages: with order 'priority' those of the first layers overtake in one of their
    own, for backward makes them last and forward wants them first."""
    first = urgent_from(draft.graph, draft.buckets, draft.sync.wire)
    return tuple("urgent" if i >= first else "wire" for i in range(len(draft.buckets)))


def _summing(draft: Draft, group: ReplicaGroup, lag: int, wires: tuple[str, ...]) -> Role:
    works, lag = passes(draft, group), lag + 1
    lanes = dict(zip(draft.labels, wires if draft.weight is None else (wires[0], *wires), strict=True))
    apart = {str(i): _factored(layer, group) for i, layer in draft.factored.items()}
    how, means = summing(draft), means_of(draft)
    packs = {label: f"W{label}" if f"P{label}" in means else f"P{label}" for label in draft.labels}
    found = {
        label: apart.get(label) or summed(how, label, bucket, lanes[label], packs[label])
        for label, bucket in draft.labels.items()
    }
    weighed = (After("AW", lag),) if draft.weight and not means else ()
    ready = {i: (After(found[str(i)].last, lag), *weighed) for i in range(len(draft.buckets))}
    body = updates(draft, ready, lag, mean=bool(means)) if draft.graph.clip_norm else []
    needs = {} if draft.graph.clip_norm else {work.instruction.name: work.needs for work in works}
    first = bounded_alone(draft, {f"P{label}": one.first for label, one in found.items()})
    whole = {draft.buckets[i].name for i in draft.factored}
    for one in packed(draft, works, {}):
        for i in needs.get(one.name, ()):
            body += applied(draft, i, ready[i], lag, mean=bool(means))
        if not (isinstance(one.act, Pack) and one.act.bucket in whole):
            body += [one, *means.get(one.name, ()), *first.get(one.name, ())]
    body += [one for each in found.values() for one in each.then]
    own = tuple(map(Lane, dict.fromkeys([*wires, *(one.lane for each in found.values() for one in each.then)])))
    name = f"{group.name}-{group.ranks[0]}" if apart else group.name
    return Role(name, group.ranks, tuple(body), (COMPUTE, DATA, *own))


def _factored(layer: Layer, group: ReplicaGroup) -> Agreement:
    """A dense layer's gradient from the factors of all, each of whom gives its own to all others (FM-02)."""
    (rank,), several = group.ranks, len(layer.counts[group.ranks[0]]) > 1
    free = (After(f"B{layer.bucket}#0" if several else f"B{layer.bucket}"),)
    return Agreement((), tuple(layer.shared(rank, f"A{layer.bucket}", free)), f"A{layer.bucket}")
