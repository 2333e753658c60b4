"""What everything costs: core-seconds on a device, bytes on its ports, seconds of waiting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, final

from partita.cluster.cluster import Cluster, Port
from partita.cost.wiring import ALONE, Circle, Wiring
from partita.errors import CostError
from partita.graph.graph import Graph
from partita.graph.kinds import kinds_of
from partita.graph.precision import shortened
from partita.graph.signature import signature
from partita.plan.wire import Codec
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
    Kind,
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
    Space,
    Update,
)  # fmt: skip
from partita.program.program import Bucket, Program
from partita.units import BytesPerSecond, Seconds
from partita.wire.algorithms import by_hops, by_messages, schedule_of
from partita.wire.codec import spec_of, text_of
from partita.wire.loads import loads_of


@dataclass(frozen=True, slots=True)
class Demand:
    """What one instance of an instruction asks of its rank: `core` seconds of its processor and `latency` seconds in
    which it asks nothing. What goes over links is told by `messages`."""

    core: Seconds = 0.0
    latency: Seconds = 0.0


@dataclass(frozen=True, slots=True)
class Touch:
    """Core-seconds of working through tensors: so much a `tensor`, an `element`, and a `call` over all of them."""

    tensor: Seconds
    element: Seconds
    call: Seconds = 0.0

    def of(self, elements: float, tensors: float = 1.0) -> Seconds:
        return self.call + self.tensor * tensors + self.element * elements


NOTHING: Final = Touch(0.0, 0.0)
CORRECTING: Final = 4  # passes of a server's correction over its bucket
MERGING, SIFTING = 60.0, 4.0  # copies of a number that an entry of a stream takes, and a number of the vector it is of


@dataclass(frozen=True, slots=True)
class Host:
    """`cores` whole cores of one machine, which the devices of `ranks` share in any moment, whatever each's quota."""

    ranks: tuple[int, ...]
    cores: float


@final
@dataclass(frozen=True)
class Costs:
    """Costs of a graph on a cluster.

    `operators` maps signatures to core-seconds on a device of speed 1; `sizes` are the batch sizes that they cover;
    `source` says where the numbers come from ('measured', 'datasheet'), `because` why not from elsewhere, `hosts` which
    emulated devices share cores; `codecs` has encoding and decoding by the codec's text; `drags` how many times as long
    each rank takes, for two cores of one machine are not always equally fast. `launching` is what the threads take that
    launch it all on accelerators, which may run ahead of these, `lying` updates piece by piece (None: as all).
    """

    graph: Graph
    cluster: Cluster
    operators: Mapping[str, Seconds]
    copy: Touch
    add: Touch
    update: Touch
    load: Touch
    sizes: tuple[int, ...] = ()
    instruction: Seconds = 20e-6
    wiring: Wiring = Wiring()
    source: str = "measured"
    because: str = ""
    hosts: tuple[Host, ...] = ()
    codecs: Mapping[str, tuple[Touch, Touch]] = field(default_factory=dict)
    drags: tuple[float, ...] = ()
    launching: Costs | None = None
    lying: Touch | None = None
    _sums: dict[tuple[int, int, int, int], tuple[Graph, Seconds]] = field(
        default_factory=dict, repr=False, compare=False
    )

    def speed(self, rank: int) -> float:
        """How fast a rank's device was beside one of speed 1."""
        return self.cluster.devices[rank].speed / (self.drags[rank] if self.drags else 1.0)

    def segment(self, start: int, stop: int, batch: int, stage: Graph | None = None) -> Seconds:
        """Core-seconds of operators `start` to `stop` of the graph, or of a stage of it, for `batch` samples. Raises
        CostError for an unknown operator."""
        graph = stage or self.graph
        place = (id(graph), start, stop, batch)
        if place not in self._sums:
            prices = self.prices(batch, graph.precision)
            self._sums[place] = graph, sum(prices[o.name.split("@")[0]] for o in graph.operators[start:stop])
        return self._sums[place][1]

    def prices(self, batch: int, precision: str = "") -> Mapping[str, Seconds]:
        """Core-seconds of each operator by its name for `batch` samples, of the captured step or the one in a short
        dtype; a stage's copy `x@2` costs what `x` does."""
        if (batch, precision) not in self._batches:
            kinds = kinds_of(step := shortened(self.graph, precision) if precision else self.graph)
            each = [self._operator(signature(operator, graph)) for operator, graph in kinds.at(batch)]
            numbered = zip(step.operators, kinds.number, strict=True)
            self._batches[batch, precision] = {o.name: each[kind] for o, kind in numbered}
        return self._batches[batch, precision]

    @cached_property
    def _batches(self) -> dict[tuple[int, str], dict[str, Seconds]]:
        return {}

    def _operator(self, key: str) -> Seconds:
        if key not in self.operators:
            raise CostError(f"no cost is known for {key}; probe the task on this cluster first")
        return self.operators[key]

    def demand(self, program: Program, act: Act, circle: Circle = ALONE) -> Demand:
        """What an act asks of each rank of its `circle` that carries it out, apart from links."""
        own = self.instruction
        match act:
            case Load():
                return Demand(own + (self.load.of(act.count) if act.fetch else 0.0))
            case Compute():
                segment = program.segment[act.segment]
                graph = program.graph_of(segment.stage, self.graph)
                return Demand(own + self.segment(segment.start, segment.stop, segment.batch, graph))
            case Pack():
                return Demand(own + _over(program.bucket[act.bucket], self.add if act.add else self.copy))
            case Combine():
                return Demand(own + len(act.sources) * _over(program.bucket[act.bucket], self.add))
            case Encode():
                return Demand(own + self._coding(program, act.coding, 0))
            case Decode():
                return Demand(own + max(len(act.sources), 1) * self._coding(program, act.coding, 1))
            case Free():
                kept = act.space is Space.GRADIENT
                return Demand(own + kept * (self.add if act.add else self.copy).of(program.bucket[act.bucket].owned))
            case Scale():
                return Demand(own + self.copy.of(program.bucket[act.bucket].owned))
            case Mix():
                return Demand(own + len(act.terms) * self.copy.of(program.bucket[act.bucket].elements))
            case Norm() | Clip():
                passes = 2 if isinstance(act, Clip) and not act.by else 1
                return Demand(own + passes * sum(_owned(program.bucket[name], self.copy) for name in act.buckets))
            case Update(part=part):
                return Demand(own + _owned(program.bucket[act.bucket], (self.lying if part else None) or self.update))
            case Apply():
                return Demand(own + self._applying(program.bucket[act.bucket], act))
            case Mark() | Settle():
                return Demand(own * isinstance(act, Settle))
            case Snapshot():
                return Demand(own + self.copy.of(program.bucket[act.bucket].elements))
            case Collective() | Send() | Receive():
                return self._transport(program, act, circle)

    def _coding(self, program: Program, name: str, way: int) -> Seconds:
        """Encoding a bucket, all its parts if they are apart, or decoding one coding, then of the rank's own part."""
        coding = program.coding[name]
        bucket, touch = program.bucket[coding.bucket], self.codec(coding.codec)[way]
        elements = bucket.owned if way and coding.edges else bucket.elements
        return touch.of(elements) + (1 - way) * max(len(coding.parts) - 1, 0) * touch.call

    def codec(self, codec: Codec) -> tuple[Touch, Touch]:
        """Encoding and decoding; where not measured, what its kind took with other numbers, or from its passes over
        memory, two of which are a copy."""
        for known in (text_of(codec), codec.name):
            if known in self.codecs:
                return self.codecs[known]
        ahead, back = (Touch(self.copy.call, passes / 2 * self.copy.element) for passes in spec_of(codec).passes)
        return ahead, back

    def _applying(self, bucket: Bucket, act: Apply) -> Seconds:
        """A sum where several make a step, a part of that step, and what corrections read besides."""
        added = self.add.of(bucket.elements)
        if act.delta:
            return added
        spent = (act.need > 1 or act.drop) * _over(bucket, self.add)
        spent += CORRECTING * len(act.corrections) * added
        return spent + (0.0 if act.drop else _over(bucket, self.update) / act.need)

    def _transport(self, program: Program, act: Collective | Send | Receive, circle: Circle) -> Demand:
        w, size, ranks = self.wiring, program.payload(act), circle.ranks
        if isinstance(act, Send):
            return Demand(w.start + w.sent * size)
        if isinstance(act, Receive):
            return Demand(w.start + w.received * size, w.message)
        if not by_messages(act):
            return Demand(w.reducing(size, circle, act.kind), w.waiting(size, circle, act.kind))
        if by_hops(act):
            return Demand(max(self.hop_cores(program, act, ranks)))
        elements, item = program.extent(act, ranks)
        laps, share = 2 if act.kind is Kind.ALL_REDUCE else 1, (ranks - 1) / ranks * elements * item
        added = w.reduced if act.kind is Kind.ALL_REDUCE else 0.0
        messages = laps * (ranks - 1)
        core = 2 * messages * w.start + share * (laps * (w.sent + w.received) + added)
        return Demand(core, messages * (w.message + circle.way))

    def hop_cores(self, program: Program, act: Collective, ranks: int) -> list[Seconds]:
        """Core-seconds of each member of a collective that goes by a schedule: of sending, receiving, adding, encoding
        and decoding."""
        elements, item = program.extent(act, ranks)
        w, found = self.wiring, [0.0] * ranks
        ahead, back = self.codec(act.codec) if act.codec else (NOTHING, NOTHING)
        schedule = schedule_of(act.kind, act.algorithm, ranks)
        for load in loads_of(schedule, elements, item, act.codec, act.density, program.edges(act)):
            start = w.start * load.messages
            found[load.source] += start + w.sent * load.size + ahead.of(load.encoded, bool(load.encoded))
            found[load.target] += start + w.received * load.size + w.reduced * load.added * item
            found[load.target] += back.of(load.decoded) + self.copy.element * MERGING * load.merged
        return [own + self.copy.element * SIFTING * elements for own in found] if schedule.sparse else found

    def carried(self, program: Program, act: Collective, circle: Circle) -> float:
        """Which part of a ring's bytes goes over the ports."""
        return 1.0 if by_messages(act) else self.wiring.carried(program.payload(act), circle, act.kind)

    def payload(self, port: Port) -> BytesPerSecond:
        """Payload bytes a second of a port."""
        return self.wiring.payload(self.cluster, port)


def _over(bucket: Bucket, touch: Touch) -> Seconds:
    return touch.of(bucket.elements, len(bucket.pieces))


def _owned(bucket: Bucket, touch: Touch) -> Seconds:
    """Over one rank's part; where parts meet within a piece, both ranks have some of it."""
    ranks = len(bucket.shares.edges) - 1 if bucket.shares else 1
    return touch.of(bucket.owned, (len(bucket.pieces) + ranks - 1) / ranks)
