"""The cost of each instruction: core-seconds on a device, and seconds in which it waits.

Core-seconds are seconds of one whole core of a device of speed 1; the simulator divides them by a device's speed and
quota. The bytes that messages put on links are not here: `simulator/transfers` lists them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final, final

from partita.cluster.cluster import Cluster, Port
from partita.cost.passes import over, owned, passes_of
from partita.cost.scratch import Processor
from partita.cost.touch import NOTHING, Calls, Touch
from partita.cost.wiring import ALONE, RARELY, Circle, Post, Wiring
from partita.cost.workspaces import NONE, Workspaces
from partita.errors import CostError
from partita.graph.fusing import Part, parts_of
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
from partita.wire.algorithms import by_hops, by_messages, course
from partita.wire.codec import spec_of, text_of
from partita.wire.loads import HopLoad, loads_of


@dataclass(frozen=True, slots=True)
class Demand:
    """What an instance of an instruction needs of its rank: `core` core-seconds, then `latency` seconds of waiting."""

    core: Seconds = 0.0
    latency: Seconds = 0.0


CORRECTING: Final = 4  # additions that a server's correction of a gradient takes as long as
CASTS: Final = 1.5  # copies: a short gradient to a long one and back for the weight, 6 of a copy's 8 bytes each
MERGING: Final = 60.0  # copies of an element that merging an entry of a sparse stream takes as long as
SIFTING: Final = 4.0  # copies of an element that searching an element of a vector for entries takes as long as


@dataclass(frozen=True, slots=True)
class Host:
    """`cores` cores of one machine, which the devices of `ranks` share at every moment, besides each one's quota."""

    ranks: tuple[int, ...]
    cores: float


@final
@dataclass(frozen=True)
class Costs:
    """Costs of a graph on a cluster.

    Operators: `operators` maps signatures to core-seconds, and covers the batch sizes `sizes`; a target with FIRST
    behind it has what its first operator in a step takes more. Passes over tensors: `copy`, `warm` (a copy of what came
    or was made a moment ago; None: as `copy`), `add`, `check` (whether values are finite), `update` (an optimizer's
    step), `update_unpacked` (one with gradients that were not packed, piece by piece; None: as `update`), `load` (an
    element is a sample; samples `at_hand` are not read ahead), `codecs` (codec as text -> encoding, decoding).
    Messages: `wiring`. Every instruction takes `instruction` core-seconds besides. `again` has what instructions and
    passes take right behind other short ones, `alone` in a plan for one rank, which touches all at its own intervals
    (None: the same).
    Devices: `slowdowns` has for each rank how many times as long it takes, since two cores of one machine are not
    always equally fast (empty: 1); `unevenness` is the standard deviation over the mean of what one and the same work
    takes on a device; `hosts` says which emulated devices share cores, `processor` of what kind these are, `workspaces`
    what operators take of an accelerator's memory; `launching` are the costs of host threads that launch work on
    accelerators, which run ahead. Origin: `source` is 'measured' or 'datasheet', `because` why costs were not measured.
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
    slowdowns: tuple[float, ...] = ()
    unevenness: float = 0.0
    processor: Processor = Processor.WIDE
    workspaces: Workspaces = NONE
    at_hand: bool = False
    launching: Costs | None = None
    update_unpacked: Touch | None = None
    check: Touch = NOTHING
    warm: Touch | None = None
    again: Calls | None = None
    alone: Calls | None = None
    _sums: dict[tuple[int, int, int, int, bool], tuple[Graph, Seconds]] = field(
        default_factory=dict, repr=False, compare=False
    )

    @cached_property
    def behind(self) -> Costs:
        """The costs of instructions that come right behind other short ones; none takes less."""
        return replace(self, again=None, **self.again.given) if self.again else self

    def among(self, ranks: int) -> Costs:
        """The costs of programs of so many ranks."""
        return replace(self, alone=None, **self.alone.given) if self.alone and ranks == 1 else self

    def speed(self, rank: int) -> float:
        """The speed of a rank's device; 1 is that of the device on which core-seconds were measured."""
        return self.cluster.devices[rank].speed / self._slowdown(rank)

    def pace(self, rank: int) -> float:
        """Core-seconds of that device that one thread of a rank gets in a second."""
        return self.cluster.devices[rank].pace / self._slowdown(rank)

    def _slowdown(self, rank: int) -> float:
        return self.slowdowns[rank] if self.slowdowns else 1.0

    def segment(
        self, start: int, stop: int, batch: int, stage: Graph | None = None, compiled: bool = False
    ) -> Seconds:  # fmt: skip
        """Core-seconds of operators `start` to `stop` of the graph, or of a `stage` of it, for `batch` samples.

        Raises CostError for an operator whose cost is not known.
        """
        graph = stage or self.graph
        place = (id(graph), start, stop, batch, compiled)
        if place not in self._sums:
            prices = self.prices(batch, graph.precision, compiled)
            self._sums[place] = graph, sum(prices[o.name.split("@")[0]] for o in graph.operators[start:stop])
        return self._sums[place][1]

    def prices(self, batch: int, precision: str = "", compiled: bool = False) -> Mapping[str, Seconds]:
        """Operator name -> core-seconds for `batch` samples, of the captured step or (`precision`) of the step in that
        short dtype, where it is `compiled` and that is priced as parts of kernels. A stage's copy `x@2` of an operator
        costs what `x` does."""
        known = batch, precision, compiled
        if known not in self._batches:
            kinds = kinds_of(step := shortened(self.graph, precision) if precision else self.graph)
            keys = [signature(operator, graph) for operator, graph in kinds.at(batch)]
            parts = parts_of(step) if compiled else (None,) * len(step.operators)
            each = zip(step.operators, kinds.number, parts, strict=True)
            self._batches[known] = {o.name: self._operator(keys[kind], part) for o, kind, part in each}
        return self._batches[known]

    @cached_property
    def _batches(self) -> dict[tuple[int, str, bool], dict[str, Seconds]]:
        return {}

    def _operator(self, key: str, part: Part | None = None) -> Seconds:
        if part is not None and key + part.mark in self.operators:
            return self.operators[key + part.mark]
        if key not in self.operators:
            raise CostError(f"no cost is known for {key}; probe the task on this cluster first")
        return self.operators[key]

    def demand(self, program: Program, act: Act, circle: Circle = ALONE, post: Post = RARELY) -> Demand:
        """What an act needs of each rank that carries it out, apart from links; `circle` is the group of a collective,
        and `post` tells how a rank has messages."""
        own, warm = self.instruction, self.warm or self.copy
        match act:
            case Load():
                return Demand(own + (self.load.of(act.count) if act.fetch else 0.0))
            case Compute():
                segment = program.segment[act.segment]
                graph = program.graph_of(segment.stage, self.graph)
                taken = self.segment(segment.start, segment.stop, segment.batch, graph, program.compiled)
                return Demand(own + taken)
            case Pack():
                return Demand(own + over(program.bucket[act.bucket], self.add if act.add else self.copy))
            case Combine():
                return Demand(own + len(act.sources) * over(program.bucket[act.bucket], self.add))
            case Encode():
                own += (act.space is not Space.RESIDUAL) * self._looking(program, program.bucket[act.bucket])
                return Demand(own + self._coding(program, act.coding, 0))
            case Decode():
                return Demand(own + self._coding(program, act.coding, 1, max(len(act.sources), 1)))
            case Free():
                kept, touch = act.space is Space.GRADIENT, self.add if act.add else self.copy
                return Demand(own + kept * touch.of(program.bucket[act.bucket].owned))
            case Scale():
                return Demand(own + warm.of(program.bucket[act.bucket].owned))
            case Mix():
                return Demand(own + passes_of(act) * warm.of(program.bucket[act.bucket].elements))
            case Norm() | Clip():
                passes = 2 if isinstance(act, Clip) and not act.by else 1
                return Demand(own + passes * sum(owned(program.bucket[name], warm) for name in act.buckets))
            case Update(part=part):
                bucket, touch = program.bucket[act.bucket], (self.update_unpacked if part else None) or self.update
                looks, casts = bool(part) and not bucket.master, CASTS * bool(bucket.master)
                looked, mean = looks * self._looking(program, bucket), act.share < 1 and not self.graph.optimizer.linear
                return Demand(own + owned(bucket, touch) + looked + (casts + mean) * owned(bucket, self.copy))
            case Apply():
                return Demand(own + self._applying(program.bucket[act.bucket], act))
            case Mark() | Settle():
                return Demand(own * isinstance(act, Settle))
            case Snapshot():
                return Demand(own + self.copy.of(program.bucket[act.bucket].elements))
            case Receive():
                return self._transport(program, act, circle, post)
            case Collective() | Send():
                moved, leaves = self._transport(program, act, circle, post), act.space is Space.GRADIENT
                looked = self._looking(program, program.bucket[act.bucket]) if leaves else 0.0
                return replace(moved, core=moved.core + looked)

    def _looking(self, program: Program, bucket: Bucket) -> Seconds:
        """Core-seconds of looking whether a bucket is finite, of weights and where no scaled loss looks for itself."""
        return self.check.of(bucket.elements) if bucket.pieces and not program.scaling else 0.0

    def _coding(self, program: Program, name: str, way: int, many: int = 1) -> Seconds:
        """Core-seconds of encoding a bucket (`way` 0) or of decoding so `many` codings of it (1). If ranks own parts of
        the bucket, all parts are encoded, each by a call, and the rank's own part is decoded."""
        coding = program.coding[name]
        bucket, touch = program.bucket[coding.bucket], self.codec(coding.codec)[way]
        size = bucket.owned if way and coding.edges else bucket.elements
        return touch.of(many * size, many * coding.tensors * (1 if way else max(len(coding.parts), 1)))

    def codec(self, codec: Codec) -> tuple[Touch, Touch]:
        """The costs of encoding and of decoding: as measured, or measured with other settings of the codec, or else
        from the number of its passes over memory, of which a copy has two."""
        for known in (text_of(codec), codec.name):
            if known in self.codecs:
                return self.codecs[known]
        ahead, back = (Touch(self.copy.call, passes / 2 * self.copy.element) for passes in spec_of(codec).passes)
        return ahead, back

    def _applying(self, bucket: Bucket, act: Apply) -> Seconds:
        """Core-seconds of a server's Apply: adding the contribution, corrections, and 1 / need of the update that every
        `need`-th one makes, of the mean where the rule is not linear in gradients."""
        if act.delta:
            return self.add.of(bucket.elements)
        mean = (not self.graph.optimizer.linear) * (added := self.add.of(bucket.elements))
        spent = (act.need > 1 or act.drop) * over(bucket, self.add) + CORRECTING * len(act.corrections) * added
        return spent + (added if act.drop else (over(bucket, self.update) + mean) / act.need)

    def _transport(self, program: Program, act: Collective | Send | Receive, circle: Circle, post: Post) -> Demand:
        w, size, ranks = self.wiring, program.payload(act), circle.ranks
        if isinstance(act, Send | Receive):
            value = act.space is Space.VALUE
            start = w.starting(size, post, value=value)
            if isinstance(act, Send):
                return Demand(start + w.sent * size)
            return Demand(start + w.received * size, w.crossing if value else w.message)
        if not by_messages(act):
            return Demand(w.reducing(size, circle, act.kind), w.waiting(size, circle, act.kind))
        if by_hops(act):
            return Demand(max(self.hop_cores(program, act, ranks)))
        elements, item = program.extent(act, ranks)
        laps, share = 2 if act.kind is Kind.ALL_REDUCE else 1, (ranks - 1) / ranks * elements * item
        added, messages = w.reduced * (laps == 2), laps * (ranks - 1)
        core = 2 * messages * w.hopping_start + share * (laps * (w.sent + w.received) + added)
        return Demand(core, messages * (w.hop(elements * item / ranks) + circle.way))

    def hop_cores(self, program: Program, act: Collective, ranks: int) -> list[Seconds]:
        """Core-seconds of each member of a collective that follows a schedule of the wire room: sending, receiving,
        adding, encoding and decoding, over all hops."""
        elements, _ = program.extent(act, ranks)
        schedule, found = course(program, act, ranks)[0], [0.0] * ranks
        for load, (before, sending, receiving, after) in self.hop_parts(program, act, ranks):
            found[load.source] += before + sending
            found[load.target] += receiving + after
        return [own + self.copy.element * SIFTING * elements for own in found] if schedule.sparse else found

    def hop_parts(
        self, program: Program, act: Collective, ranks: int
    ) -> Iterator[tuple[HopLoad, tuple[Seconds, Seconds, Seconds, Seconds]]]:
        """Of every hop core-seconds of its source before it leaves and for sending it, of its target for receiving it
        and after it has come."""
        elements, item = program.extent(act, ranks)
        w, (schedule, edges) = self.wiring, course(program, act, ranks)
        ahead, back = self.codec(act.codec) if act.codec else (NOTHING, NOTHING)
        encoded, decoded = set[int](), set[int]()  # who has done so before
        for load in loads_of(schedule, elements, item, act.codec, act.density, edges):
            start, added = w.hopping_start * load.messages, w.reduced * load.added * item
            merged = self.copy.element * MERGING * load.merged
            yield load, (
                (ahead.warm if load.source in encoded else ahead).of(load.encoded, bool(load.encoded)),
                start + w.sent * load.size, start + w.received * load.size,
                added + (back.warm if load.target in decoded else back).of(load.decoded) + merged,
            )  # fmt: skip
            encoded |= {load.source} if load.encoded else set()
            decoded |= {load.target} if load.decoded else set()

    def carried(self, program: Program, act: Collective, circle: Circle) -> float:
        """Bytes that a collective puts on the ports, as a fraction of those of a ring."""
        return 1.0 if by_messages(act) else self.wiring.carried(program.payload(act), circle, act.kind)

    def payload(self, port: Port) -> BytesPerSecond:
        """The bandwidth of a port that is left for payload."""
        return self.wiring.payload(self.cluster, port)
