"""What a plan's codecs add to an all-reduce of gradients, or of what has changed of weights (C0 in place of P0).

end, sums    compute  P0 E0        E0 encodes, with what the codec held back; A0 sums codings as they are
             wire           A0--
             decode             D0                  (fp16, bf16)
end          the same, where A0 gathers the codings of all, and D0 sums what they say in the order of the ranks
in rounds    wire           A0-- A0.1--               each coding made of the sums of those before it (PowerSGD)
             encode             E0.1
             decode                    D0
streams      decode          D0                      where E0 chooses numbers, D0 leaves those in the gradient, and A0
             wire               A0--                 sums what is not 0 there (SparCML, Kylix); results that travel
                                                     whole may be encoded, by a second codec, of hops
hop          wire        A0--      a schedule each of whose messages is encoded (Pipe-SGD's T and Q)
to owners    wire        Z0--      E0 makes a message of each owner's part, Z0 brings each owner those of all, and
             decode          D0    D0 sums what they say; or a ring each of whose messages is encoded (`shards`)

E0 of a round waits for D0 of the one before, which still reads the coding; where gradients of several rounds are under
way, for that of so many rounds before.

Of differences (EF21, DIANA), all that a worker has said is SAID, and the sum of that over all is HEARD:

end          compute  P0 J0 E0 M0 MJ0           J0: what differs from SAID, E0 encodes that; M0: what the coding says,
             wire           A0-------           MJ0: SAID moves by so much of it; A0 before M0 where codings are summed
             decode                D0 H0 HD0    D0: the sum of what all say, H0: HEARD moves, HD0: the gradient is both

A bound on each worker's own gradient and momentum ahead of the codec (SP-03) come between:

             compute  P0 P1 .. K V0 E0 V1 E1 ..      K waits for the last P: it bounds the norm of all buckets
             V0: velocity = factor velocity + gradient; E0 encodes that, and clears it where the coding speaks
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from partita.graph.graph import Graph
from partita.graph.tensor import ITEMSIZE
from partita.lowering.layout import shapes_of
from partita.lowering.samples import Draft
from partita.plan.plan import Update
from partita.plan.rule import momentum_ahead
from partita.plan.sync import Payload, Servers
from partita.plan.wire import Codec, Wire
from partita.program.instruction import After, Clip, Collective, Decode, Encode, Instruction, Mix, Term
from partita.program.layout import WEIGHT, Bucket, Coding
from partita.program.space import Kind, Space
from partita.wire.algorithms import BACKEND, algorithm_for, all_numbers, of_streams
from partita.wire.codec import (
    bound_of,
    check_codec,
    coded_size,
    density_of,
    masks,
    message_dtype,
    room,
    settings_of,
    spec_of,
)

DECODE: Final = "decode"
SUMMED: Final = {Payload.DELTA: Space.DELTA, Payload.PARAMETER: Space.PARAMETER}  # of other payloads, gradients


def codec_at(wire: Wire, where: str) -> Codec | None:
    """The first codec that is applied at `where`: 'end', 'hop', 'server'; None if there is none."""
    return next((codec for codec in wire.codecs if codec.where == where), None)


def codings(how: Summing, bucket: Bucket) -> tuple[Coding, ...]:
    """What is made of a bucket before it is sent, one after the other; of several rounds at once, unless a round begins
    with what the one before came to. Raises PlanError for a codec that is none."""
    codec = codec_at(how.wire, "end")
    if codec is None or bucket.name == WEIGHT:
        return ()
    spec, dtype, name = spec_of(check_codec(codec)), message_dtype(codec, bucket.dtype), f"{bucket.name}.{codec.name}"
    if spec.counts:
        shapes = shapes_of(how.graph, bucket)
        matrices = max(sum(len(shape) > 1 for shape in shapes), 1)
        counts = spec.counts(shapes, settings_of(codec))
        names = [f"{name}.{i}" if i else name for i in range(len(counts))]
        return tuple(
            Coding(names[i], bucket.name, codec, dtype, count, before=tuple(names[:i]), tensors=matrices)
            for i, count in enumerate(counts)
        )
    return (replace(coding_of(codec, bucket, name), slots=how.slots),)


def coding_of(codec: Codec, bucket: Bucket, name: str) -> Coding:
    """What a codec that looks at flat numbers makes of a bucket. Raises PlanError for a codec that is none."""
    spec, item, dtype = spec_of(check_codec(codec)), ITEMSIZE[bucket.dtype], message_dtype(codec, bucket.dtype)
    size = coded_size(codec, bucket.elements, item)
    most = room(codec, bucket.elements, item) if spec.varies else 0
    return Coding(name, bucket.name, codec, dtype, size // ITEMSIZE[dtype], most)


def of_parts(coding: Coding, bucket: Bucket) -> Coding:
    """The coding of a bucket with owners: of each owner's part by itself, so that it gets no more than that."""
    assert bucket.shares
    edges, item = bucket.shares.edges, ITEMSIZE[bucket.dtype]
    parts = tuple(coded_size(coding.codec, b - a, item) // ITEMSIZE[coding.dtype] for a, b in pairwise(edges))
    return replace(coding, elements=sum(parts), edges=edges, parts=parts)


def sender(wire: Wire) -> Codec | None:
    """The codec of what workers send."""
    return codec_at(wire, "end") or codec_at(wire, "server")


def upward(wire: Wire, bucket: Bucket) -> Coding | None:
    """What a worker makes of a bucket for its server."""
    codec = None if bucket.name == WEIGHT else sender(wire)
    return coding_of(codec, bucket, f"{bucket.name}.{codec.name}") if codec else None


def downward(wire: Wire, bucket: Bucket) -> Coding | None:
    """What a server makes of the sum of all, if it answers with that (QU-05) and not with weights."""
    codec = codec_at(wire, "server")
    return coding_of(codec, bucket, f"{bucket.name}.{codec.name}.down") if codec else None


@dataclass(frozen=True, slots=True)
class Agreement:
    """The instructions that make the gradients of a bucket one: `first` right after its last Pack (after that of all
    buckets where a worker's own gradient is bounded), `then` at the end of the body; `last` is the name of the one
    after which the sum is there."""

    first: tuple[Instruction, ...]
    then: tuple[Instruction, ...]
    last: str


@dataclass(frozen=True, slots=True)
class Summing:
    """Who sums up what is in a `space` of each, and how: `group` by the `wire`, what `update` puts ahead of a codec
    included; what is of `slots` rounds may be under way."""

    graph: Graph
    wire: Wire
    group: tuple[int, ...]
    update: Update = Update()
    slots: int = 1
    space: Space = Space.GRADIENT


def summing(draft: Draft) -> Summing:
    """All workers, as the plan's wire has it. Of what workers agree on every few steps no two rounds are under way."""
    sync, space = draft.sync, SUMMED.get(draft.sync.payload, Space.GRADIENT)
    slots = sync.consistency.lag + 1 if space is Space.GRADIENT else 1
    return Summing(draft.graph, sync.wire, draft.workers, draft.plan.update, slots, space)


def summed(how: Summing, label: str, bucket: Bucket, lane: str, pack: str = "") -> Agreement:
    """The all-reduce of a bucket, which is ready after `pack` (its last Pack, P and the label)."""
    wire, groups, space = how.wire, (how.group,), how.space
    made, packed, last = codings(how, bucket), After(pack or f"P{label}"), f"A{label}"
    if not made:
        hop = None if bucket.name == WEIGHT else codec_at(wire, "hop")
        algorithm = algorithm_for(all_numbers(wire), bucket.size)
        algorithm = "ring" if hop and algorithm == BACKEND else algorithm
        whole = Collective(Kind.ALL_REDUCE, bucket.name, groups, space, algorithm, hop and check_codec(hop))
        return Agreement((), (Instruction(last, whole, lane, (packed,)),), last)
    sums, codec = made[0].dtype != "uint8", made[0].codec
    free = packed, After(f"D{label}", made[0].slots)
    first = encoding(how.update, label, bucket, made[0], free, space)
    if of_streams(algorithm_for(wire, bucket.size)):
        own = Instruction(f"D{label}", Decode(bucket.name, made[0].name, (), space), DECODE, (After(first[-1].name),))
        algorithm, density = algorithm_for(wire, bucket.size), density_of(codec, bucket.elements)
        hop = codec_at(wire, "hop")
        chosen = Collective(Kind.ALL_REDUCE, bucket.name, groups, space, algorithm, hop and check_codec(hop), density)
        then = [own, Instruction(last, chosen, lane, (After(own.name),))]
        then += heard(label, bucket, codec, last, DECODE, space)
        return Agreement(tuple(first), tuple(then), then[-1].name)
    held = next(one.act.space for one in first if isinstance(one.act, Encode))
    kind = Kind.ALL_REDUCE if sums else Kind.ALL_GATHER
    then = []
    for i, coding in enumerate(made):
        again = f".{i}" if i else ""
        if i:
            more = Encode(bucket.name, coding.name, held)
            then.append(Instruction(f"E{label}{again}", more, "encode", (After(then[-1].name),)))
        algorithm, ready = algorithm_for(wire, coding.size) if sums else BACKEND, After(f"E{label}{again}")
        ready = After(first[-1].name) if sums and not i else ready
        whole = Collective(kind, coding.name, groups, Space.CODED, algorithm)
        then.append(Instruction(f"A{label}{again}", whole, f"{lane}{again}", (ready,)))
    decode = Decode(bucket.name, made[-1].name, () if sums else how.group, space)
    waits = (After(then[-1].name), *(After(one.name) for one in first[-1:] if codec.difference))
    then.append(Instruction(f"D{label}", decode, DECODE, waits))
    then += heard(label, bucket, codec, f"D{label}", DECODE, space)
    return Agreement(tuple(first), tuple(then), then[-1].name)


def encoding(
    update: Update, label: str, bucket: Bucket, coding: Coding, after: tuple[After, ...], space: Space = Space.GRADIENT
) -> list[Instruction]:
    """The Encode of a bucket, after the momentum that goes ahead of it; of differences with what is SAID by it."""
    factor, nesterov = momentum_ahead(update)
    ahead, clears, into = list[Instruction](), tuple[Space, ...](), space
    if factor:
        own = (Term(Space.VELOCITY, (factor,)), Term(Space.GRADIENT, (factor if nesterov else 1.0,)))
        ahead.append(Instruction(f"V{label}", Mix(bucket.name, Space.VELOCITY, own), "compute", after))
        space = Space.GRADIENT if nesterov else Space.VELOCITY
        clears = (Space.VELOCITY,) if masks(coding.codec) else ()
    if nesterov:
        both = Mix(bucket.name, Space.GRADIENT, (Term(Space.GRADIENT), Term(Space.VELOCITY)))
        ahead.append(Instruction(f"G{label}", both, "compute", after))
    after = (*after, *(After(one.name) for one in ahead[-1:]))
    if coding.codec.difference:
        return [*ahead, *_said(label, bucket, coding, after, space, into)]
    encode = Encode(bucket.name, coding.name, space, clears)
    return [*ahead, Instruction(f"E{label}", encode, "compute", after)]


def _said(
    label: str, bucket: Bucket, coding: Coding, after: tuple[After, ...], own: Space, into: Space
) -> Iterator[Instruction]:
    """What is in `own` encoded as its difference from what was SAID, which is made `into` the gradient, or the change
    of weights, that nobody needs any more; then SAID moves by its share of what the coding says."""
    name, moved = bucket.name, (Term(Space.SAID), Term(into, (coding.codec.difference,)))
    made = (Term(own), Term(Space.SAID, (-1.0,)))
    yield Instruction(f"J{label}", Mix(name, into, made), "compute", after)
    yield Instruction(f"E{label}", Encode(name, coding.name, into), "compute", (*after, After(f"J{label}")))
    yield Instruction(f"M{label}", Decode(name, coding.name, (), into), "compute", (After(f"E{label}"),))
    yield Instruction(f"MJ{label}", Mix(name, Space.SAID, moved), "compute", (After(f"M{label}"),))


def heard(
    label: str, bucket: Bucket, codec: Codec, ready: str, lane: str, space: Space = Space.GRADIENT
) -> list[Instruction]:
    """What makes the sum of codings of differences, once it is `ready` in a `space`, that of what they stand for: what
    was HEARD and what is new, of which HEARD keeps its share. Nothing where numbers themselves are encoded."""
    share, name = codec.difference, bucket.name
    if not share:
        return []
    moved, kept = (Term(Space.HEARD), Term(space, (share,))), Term(Space.HEARD)
    whole = (kept,) if share == 1 else (Term(space, (1 - share,)), kept)
    moves = Instruction(f"H{label}", Mix(name, Space.HEARD, moved), lane, (After(ready),))
    return [moves, Instruction(f"HD{label}", Mix(name, space, whole), lane, (After(moves.name),))]


def bounded_alone(draft: Draft, first: dict[str, tuple[Instruction, ...]]) -> dict[str, tuple[Instruction, ...]]:
    """What follows each Pack, where encoding waits for a bound on the worker's own gradient."""
    codec = sender(draft.sync.wire)
    norm = bound_of(codec, len(draft.workers)) if codec else 0.0
    if not norm:
        return first
    clip = Clip(tuple(bucket.name for bucket in draft.buckets), norm)
    packs = tuple(After(f"P{i}") for i in range(len(draft.buckets)))
    return {packs[-1].name: (Instruction("K", clip, "compute", packs), *(i for each in first.values() for i in each))}


def codings_of(draft: Draft) -> tuple[Coding, ...]:
    """The codings of all buckets."""
    wire = draft.sync.wire
    if isinstance(draft.sync.through, Servers):
        both = [made for bucket in draft.buckets for made in (upward(wire, bucket), downward(wire, bucket))]
        return tuple(coding for coding in both if coding)
    how = summing(draft)
    return tuple(coding for bucket in draft.buckets for coding in codings(how, bucket))
