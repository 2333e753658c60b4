"""What a plan's codecs add to an all-reduce of gradients.

end, sums    compute  P0 E0        E0 encodes, with what the codec held back; A0 sums codings as they are
             wire           A0--
             decode             D0                  (fp16, bf16)
end          the same, where A0 gathers the codings of all, and D0 sums what they say in the order of the ranks
hop          wire        A0--      a schedule each of whose messages is encoded (Pipe-SGD's T and Q)

E0 of a round waits for D0 of the one before, which still reads the coding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from partita.graph.tensor import ITEMSIZE
from partita.lowering.samples import Draft
from partita.plan.wire import Codec, Wire
from partita.program.instruction import After, Collective, Decode, Encode, Instruction, Kind, Space
from partita.program.program import WEIGHT, Bucket, Coding, Lane
from partita.wire.algorithms import BACKEND
from partita.wire.codec import check_codec, coded_size, spec_of

DECODE: Final = Lane("decode")


def at(wire: Wire, where: str) -> Codec | None:
    """The codec that is applied there."""
    return next((codec for codec in wire.codecs if codec.where == where), None)


def coding_of(wire: Wire, bucket: Bucket) -> Coding | None:
    """What is made of a bucket before it is sent, if anything. Raises PlanError for a codec that is none."""
    codec = at(wire, "end")
    if codec is None or bucket.name == WEIGHT:
        return None
    spec, item = spec_of(check_codec(codec)), ITEMSIZE[bucket.dtype]
    size, name = coded_size(codec, bucket.elements, item), f"{bucket.name}.{codec.name}"
    if spec.sums:
        return Coding(name, bucket.name, codec, spec.sums, size // ITEMSIZE[spec.sums])
    return Coding(name, bucket.name, codec, "uint8", size, (4 + item) * bucket.elements if spec.varies else 0)


@dataclass(frozen=True, slots=True)
class Agreement:
    """The instructions that make the gradients of a bucket one: `first` right after its last Pack, `then` at the end of
    the body; `last` is the name of the one after which the sum is there."""

    first: tuple[Instruction, ...]
    then: tuple[Instruction, ...]
    last: str


def summed(draft: Draft, label: str, bucket: Bucket, lane: str) -> Agreement:
    """The all-reduce of a bucket among all workers, as the plan's wire has it."""
    wire, groups = draft.sync.wire, (draft.workers,)
    coding, packed, last = coding_of(wire, bucket), After(f"P{label}"), f"A{label}"
    if coding is None:
        hop = None if bucket.name == WEIGHT else at(wire, "hop")
        algorithm = "ring" if hop and wire.collective == BACKEND else wire.collective
        whole = Collective(Kind.ALL_REDUCE, bucket.name, groups, Space.GRADIENT, algorithm, hop and check_codec(hop))
        return Agreement((), (Instruction(last, whole, lane, (packed,)),), last)
    sums = coding.dtype != "uint8"
    encode = Instruction(f"E{label}", Encode(bucket.name, coding.name), "compute", (packed, After(f"D{label}", 1)))
    kind, algorithm = (Kind.ALL_REDUCE, wire.collective) if sums else (Kind.ALL_GATHER, BACKEND)
    whole = Collective(kind, coding.name, groups, Space.CODED, algorithm)
    decode = Decode(bucket.name, coding.name, () if sums else draft.workers)
    return Agreement(
        (encode,),
        (
            Instruction(last, whole, lane, (After(encode.name),)),
            Instruction(f"D{label}", decode, DECODE.name, (After(last),)),
        ),
        f"D{label}",
    )


def codings_of(draft: Draft) -> tuple[Coding, ...]:
    """The codings of all buckets."""
    found = (coding_of(draft.sync.wire, bucket) for bucket in draft.buckets)
    return tuple(coding for coding in found if coding is not None)
