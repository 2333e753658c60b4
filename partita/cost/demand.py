"""What each kind of act needs of a rank, by the costs of operators, of passes over tensors and of messages.

A new kind of act gets a case in `demand_of`: nothing else of a prediction asks what it costs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from partita.arrays import Reals
from partita.cost.costs import Costs
from partita.cost.passes import over, owned, passes_of
from partita.cost.touch import NOTHING
from partita.cost.wiring import ALONE, RARELY, Circle, Post
from partita.program.instruction import (
    Act,
    Apply,
    Clip,
    Collective,
    Combine,
    Compute,
    Decode,
    Encode,
    Free,
    Load,
    Mark,
    Mix,
    Norm,
    Pack,
    Receive,
    Scale,
    Send,
    Settle,
    Snapshot,
    Update,
)
from partita.program.layout import Bucket
from partita.program.program import Program
from partita.program.space import Kind, Space
from partita.units import Seconds
from partita.wire.algorithms import by_hops, by_messages, course
from partita.wire.loads import HopColumns, columns_of

CORRECTING: Final = 4  # additions that a server's correction of a gradient takes as long as
CASTS: Final = 1.5  # copies: a short gradient to a long one and back for the weight, 6 of a copy's 8 bytes each
MERGING: Final = 60.0  # copies of an element that merging an entry of a sparse stream takes as long as
SIFTING: Final = 4.0  # copies of an element that searching an element of a vector for entries takes as long as


@dataclass(frozen=True, slots=True)
class Demand:
    """What an instance of an instruction needs of its rank: `core` core-seconds, then `latency` seconds of waiting."""

    core: Seconds = 0.0
    latency: Seconds = 0.0


def demand_of(costs: Costs, program: Program, act: Act, circle: Circle = ALONE, post: Post = RARELY) -> Demand:
    """What an act needs of each rank that carries it out, apart from links; `circle` is the group of a collective,
    and `post` tells how a rank has messages."""
    own, warm = costs.instruction, costs.warm or costs.copy
    match act:
        case Load():
            return Demand(own + (costs.load.of(act.count) if act.fetch else 0.0))
        case Compute():
            segment = program.segment[act.segment]
            graph = program.graph_of(segment.stage, costs.graph)
            taken = costs.segment(segment.start, segment.stop, segment.batch, graph, program.compiled)
            return Demand(own + taken)
        case Pack():
            return Demand(own + over(program.bucket[act.bucket], costs.add if act.add else costs.copy))
        case Combine():
            return Demand(own + len(act.sources) * over(program.bucket[act.bucket], costs.add))
        case Encode():
            own += (act.space is not Space.RESIDUAL) * _looking(costs, program, program.bucket[act.bucket])
            return Demand(own + _coding(costs, program, act.coding, 0))
        case Decode():
            return Demand(own + _coding(costs, program, act.coding, 1, max(len(act.sources), 1)))
        case Free():
            kept, touch = act.space is Space.GRADIENT, costs.add if act.add else costs.copy
            return Demand(own + kept * touch.of(program.bucket[act.bucket].owned))
        case Scale():
            return Demand(own + warm.of(program.bucket[act.bucket].owned))
        case Mix():
            return Demand(own + passes_of(act) * warm.of(program.bucket[act.bucket].elements))
        case Norm() | Clip():
            passes = 2 if isinstance(act, Clip) and not act.by else 1
            return Demand(own + passes * sum(owned(program.bucket[name], warm) for name in act.buckets))
        case Update(part=part):
            bucket, touch = program.bucket[act.bucket], (costs.update_unpacked if part else None) or costs.update
            looks, casts = bool(part) and not bucket.master, CASTS * bool(bucket.master)
            looked, mean = looks * _looking(costs, program, bucket), act.share < 1 and not costs.graph.optimizer.linear
            return Demand(own + owned(bucket, touch) + looked + (casts + mean) * owned(bucket, costs.copy))
        case Apply():
            return Demand(own + _applying(costs, program.bucket[act.bucket], act))
        case Mark() | Settle():
            return Demand(own * isinstance(act, Settle))
        case Snapshot():
            return Demand(own + costs.copy.of(program.bucket[act.bucket].elements))
        case Receive():
            return _transport(costs, program, act, circle, post)
        case Collective() | Send():
            moved, leaves = _transport(costs, program, act, circle, post), act.space is Space.GRADIENT
            looked = _looking(costs, program, program.bucket[act.bucket]) if leaves else 0.0
            return replace(moved, core=moved.core + looked)


def _looking(costs: Costs, program: Program, bucket: Bucket) -> Seconds:
    """Core-seconds of looking whether a bucket is finite, of weights, and where no scaled loss looks for it."""
    return costs.check.of(bucket.elements) if bucket.pieces and not program.scaling else 0.0


def _coding(costs: Costs, program: Program, name: str, way: int, many: int = 1) -> Seconds:
    """Core-seconds of encoding a bucket (`way` 0) or of decoding so `many` codings of it (1). If ranks own parts of
    the bucket, all parts are encoded, each by a call, and the rank's own part is decoded."""
    coding = program.coding[name]
    bucket, touch = program.bucket[coding.bucket], costs.codec(coding.codec)[way]
    size = bucket.owned if way and coding.edges else bucket.elements
    return touch.of(many * size, many * coding.tensors * (1 if way else max(len(coding.parts), 1)))


def _applying(costs: Costs, bucket: Bucket, act: Apply) -> Seconds:
    """Core-seconds of a server's Apply: adding the contribution, corrections, and 1 / need of the update that every
    `need`-th one makes, of the mean where the rule is not linear in gradients."""
    if act.delta:
        return costs.add.of(bucket.elements)
    mean = (not costs.graph.optimizer.linear) * (added := costs.add.of(bucket.elements))
    spent = (act.need > 1 or act.drop) * over(bucket, costs.add) + CORRECTING * len(act.corrections) * added
    return spent + (added if act.drop else (over(bucket, costs.update) + mean) / act.need)


def _transport(costs: Costs, program: Program, act: Collective | Send | Receive, circle: Circle, post: Post) -> Demand:
    w, size, ranks = costs.wiring, program.payload(act), circle.ranks
    if isinstance(act, Send | Receive):
        value = act.space is Space.VALUE
        start = w.starting(size, post, value=value)
        if isinstance(act, Send):
            return Demand(start + w.sent * size)
        return Demand(start + w.received * size, w.crossing if value else w.message)
    if not by_messages(act):
        return Demand(w.reducing(size, circle, act.kind), w.waiting(size, circle, act.kind))
    if by_hops(act):
        return Demand(max(hop_cores(costs, program, act, ranks)))
    elements, item = program.extent(act, ranks)
    laps, share = 2 if act.kind is Kind.ALL_REDUCE else 1, (ranks - 1) / ranks * elements * item
    added, messages = w.reduced * (laps == 2), laps * (ranks - 1)
    core = w.first_hop + 2 * messages * w.hopping_start + share * (laps * (w.sent + w.received) + added)
    return Demand(core, messages * (w.hop(elements * item / ranks) + circle.way))


def hop_cores(costs: Costs, program: Program, act: Collective, ranks: int) -> list[Seconds]:
    """Core-seconds of each member of a collective that follows a schedule of the wire room: sending, receiving,
    adding, encoding and decoding, over all hops."""
    elements, _ = program.extent(act, ranks)
    schedule, hops = course(program, act, ranks)[0], hop_columns(program, act, ranks)
    before, sending, receiving, after = hop_parts(costs, program, act, ranks)
    found = np.bincount(hops.source, before + sending, ranks) + np.bincount(hops.target, receiving + after, ranks)
    sifted = costs.copy.element * SIFTING * elements if schedule.sparse else 0.0
    return [float(own) + sifted for own in found]


def hop_columns(program: Program, act: Collective, ranks: int) -> HopColumns:
    """What every hop of a collective among so many `ranks` moves and codes."""
    schedule, edges = course(program, act, ranks)
    return columns_of(schedule, *program.extent(act, ranks), act.codec, act.density, edges)


def hop_parts(costs: Costs, program: Program, act: Collective, ranks: int) -> Reals:
    """Core-seconds of every hop of a collective, shape [4, hops]: of its source before it leaves (encoding) and for
    sending it, of its target for receiving it and after it has come (decoding, adding, merging)."""
    w, hops, (_, item) = costs.wiring, hop_columns(program, act, ranks), program.extent(act, ranks)
    ahead, back = costs.codec(act.codec) if act.codec else (NOTHING, NOTHING)
    start, added = w.hopping_start * hops.messages, w.reduced * hops.added * item
    coding = ahead.each(hops.encoded, hops.encoded > 0, first=hops.encodes)
    decoding = back.each(hops.decoded, np.ones(len(hops.decoded)), first=hops.decodes)
    return np.stack([
        coding, start + w.first_hop * hops.sends + w.sent * hops.size,
        start + w.first_hop * hops.receives + w.received * hops.size,
        added + decoding + costs.copy.element * MERGING * hops.merged,
    ])  # fmt: skip
