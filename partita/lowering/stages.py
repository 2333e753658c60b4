"""A pipeline: stages on ranks, a schedule's passes in the compute lane, what crosses in a lane a way, then updates.

compute      F0#0 F0#1 .. B0#0 P0 B0#1 P0 ......... U0 U1 | next round            a rank of stage 0
0>1.f            S---- S----                                one lane for each pair of stages and direction:
1>0.b                     R---- R----                       the microbatches' order is the same at both ends
wire                                      A0-- A1--         among the stage's replicas, holders of a tied weight;
                                                            codecs go around A as without stages (`coding`)

What the samples of a weighted loss weigh is known where the loss is; all ranks hear of it (AW) before they update, and
of the norm of all gradients (AN) where that is bounded; also ranks without weights, which may have the loss to scale.

An environment belongs to a rank and a microbatch. What a stage takes is there under `value>stage`, whether a message
brought it or another stage of the same rank left it. Samples and labels are loaded where they are read.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial
from typing import Final

from partita.graph.graph import Graph
from partita.graph.operator import Phase
from partita.graph.stages import Crossing, Partition
from partita.lowering.agreement import lanes_of
from partita.lowering.coding import Summing, summed
from partita.lowering.norm import SQUARES, bounded, norm_shares
from partita.lowering.pipeline import Pipeline, Ranks, StageReplicas
from partita.lowering.schedules import ROWS, Pass
from partita.plan.plan import Plan
from partita.program.instruction import (
    Act,
    After,
    Collective,
    Compute,
    Instruction,
    Load,
    Pack,
    Receive,
    Scale,
    Send,
    Update,
)
from partita.program.layout import WEIGHT, Bucket, Parcel, of_one_number
from partita.program.program import Program, Role, Segment
from partita.program.space import Kind, Space

PHASES: Final = {"F": Phase.FORWARD, "B": Phase.BACKWARD}
BEFORE: Final = {"B": "F", "W": "B"}


def staged(graph: Graph, plan: Plan) -> Program:
    """The Program of a plan with stages: one role for each set of replicas at each place along the pipe."""
    pipe = Pipeline(graph, plan)
    places = range(len(pipe.ranks))
    writers = [_Writer(pipe, place, replicas) for place in places for replicas in pipe.replica_sets(place)]
    roles = tuple(writer.role() for writer in writers)
    segments = {name: s for writer in writers for name, s in writer.segments.items()}
    counts = sorted({count for writer in writers for count in writer.replicas.counts})
    named = {act.bucket for role in roles for act in role.acts(Collective)}
    numbers = (bucket for bucket in (of_one_number(WEIGHT), SQUARES) if bucket.name in named)
    return Program(
        plan.name, roles, tuple(segments.values()), (*(bucket for bucket, _ in pipe.bucket_stages), *numbers),
        pipe.batch,
        semantics="lossy" if plan.sync and plan.sync[0].wire.codecs else "exact", stages=pipe.partition.stages,
        parcels=tuple(_parcels(pipe.partition, counts)), codings=pipe.codings,
    )  # fmt: skip


def _parcels(partition: Partition, counts: list[int]) -> Iterator[Parcel]:
    for crossing in partition.crossings:
        inputs = dict(partition.stages[crossing.target].inputs)
        for count in counts:
            yield Parcel(_parcel(crossing, count), tuple((name, inputs[name]) for name in crossing.values), count)


def _way(crossing: Crossing) -> str:
    return f"{crossing.source}>{crossing.target}.{crossing.phase[0]}"


def _parcel(crossing: Crossing, count: int) -> str:
    return f"{_way(crossing)}/{count}"


class _Writer:
    """Writes the instructions of one role; lives for one call of `staged`."""

    def __init__(self, pipe: Pipeline, place: int, replicas: StageReplicas) -> None:
        self.pipe, self.place, self.replicas = pipe, place, replicas
        self.counts = dict(zip(replicas.numbers, replicas.counts, strict=True))
        self.starts = dict(zip(replicas.numbers, replicas.starts, strict=True))
        self.segments: dict[str, Segment] = {}
        self.body: list[Instruction] = []
        self.packed: dict[str, str] = {}
        self.means: set[str] = set()  # buckets that are means before they are encoded
        self.runs, self.peers = cache(pipe.runs), cache(partial(pipe.peers, replicas))

    def role(self) -> Role:
        schedule, pipe = self.pipe.plan.schedule, self.pipe
        along = pipe.ahead(self.place) + 1 + self.place
        row = ROWS[schedule.order](along, self.place, len(self.replicas.numbers), schedule.chunks)
        finals = {(one.kind, one.chunk): one for one in row}
        for one in row:
            self._pass(one, finals[one.kind, one.chunk] == one)
        self._updates()
        return Role(self.replicas.name, self.replicas.ranks, tuple(self.body), lanes_of(self.body))

    def _pass(self, one: Pass, last: bool) -> None:
        stage, m = one.chunk * len(self.pipe.ranks) + self.place, self.replicas.numbers[one.microbatch]
        mark, part, count = f"{stage}#{m}", f"0.{m}", self.counts[m]
        waits = [self._load(stage, m)] if one.kind == "F" else [f"{BEFORE[one.kind]}{mark}"]
        phase = PHASES.get(one.kind)
        crossings = self.pipe.crossings.get((stage, phase), ()) if phase else ()
        waits += [self._receive(c, m) for c in crossings if c.target == stage and self._far(c)]
        runs = self.runs(stage, one.kind, last)
        for n, (start, stop, complete) in enumerate(runs):
            name = f"{one.kind}{mark}" if n == len(runs) - 1 else f"{one.kind}{mark}.{n}"
            kind = f"{one.kind}{stage}/{count}" if len(runs) == 1 else f"{one.kind}{stage}.{n}/{count}"
            if kind not in self.segments:
                self.segments[kind] = Segment(kind, start, stop, count, self.pipe.share(count), stage)
            self._add(name, Compute(kind, part), "compute", *waits)
            waits = []
            for bucket in complete:
                self._pack(bucket, m, part, stage)
        for crossing in crossings:
            if crossing.source == stage and self._far(crossing):
                self._send(crossing, m, f"{one.kind}{mark}")
        if one.kind == "F" and self._packs_weight(stage):
            act = Pack(WEIGHT, part, WEIGHT in self.packed, stage)
            self.packed[WEIGHT] = self._add(f"PW#{m}", act, "compute", "AW", rounds=1)

    def _add(self, name: str, act: Act, lane: str, *after: str, rounds: int = 0) -> str:
        self.body.append(Instruction(name, act, lane, tuple(After(one, rounds) for one in after)))
        return name

    def _packs_weight(self, stage: int) -> bool:
        """Whether the weight's bucket is written after a forward pass: by the stage that knows the weight, and once, a
        zero, by ranks without it."""
        knows, known = self.pipe.weight_stage, self.pipe.weight_stage % len(self.pipe.ranks) == self.place
        return knows >= 0 and (stage == knows if known else WEIGHT not in self.packed)

    def _far(self, crossing: Crossing) -> bool:
        """Whether a message is needed; stages of one rank leave values to each other in their environment."""
        return self.pipe.holders(crossing.source) != self.pipe.holders(crossing.target)

    def _load(self, stage: int, m: int) -> str:
        share, fetch = self.pipe.share(self.counts[m]), self.pipe.reads_samples[stage]
        act = Load(self.starts[m], self.counts[m], f"0.{m}", share, stage=stage, fetch=fetch)
        return self._add(f"L{stage}#{m}", act, "data", f"F{stage}#{m}", rounds=1)

    def _peers(self, stage: int, m: int) -> Ranks:
        """Who runs microbatch `m` through a stage: of replicas of the mesh, the same for all microbatches."""
        return self.peers(stage, m if self.pipe.round_robin else 0)

    def _receive(self, crossing: Crossing, m: int) -> str:
        peers, parcel = self._peers(crossing.source, m), _parcel(crossing, self.counts[m])
        key = f"{_way(crossing)}#{m}"
        return self._add(f"R{key}", Receive(parcel, peers, key, Space.VALUE, f"0.{m}"), _way(crossing))

    def _send(self, crossing: Crossing, m: int, after: str) -> None:
        peers, parcel = self._peers(crossing.target, m), _parcel(crossing, self.counts[m])
        key = f"{_way(crossing)}#{m}"
        self._add(f"S{key}", Send(parcel, peers, key, Space.VALUE, f"0.{m}"), _way(crossing), after)

    def _pack(self, bucket: Bucket, m: int, part: str, stage: int) -> None:
        add = bucket.name in self.packed
        name = f"P{bucket.name[1:]}.{stage}#{m}"
        self.packed[bucket.name] = self._add(name, Pack(bucket.name, part, add, stage), "compute")

    def _updates(self) -> None:
        """Agreement on own buckets first, on tied ones last: those wait for other stages."""
        if WEIGHT in self.packed:
            everybody = (self.pipe.everybody,)
            self._add("AW", Collective(Kind.ALL_REDUCE, WEIGHT, everybody), "wire", self.packed[WEIGHT])
        mine = [(bucket, self.pipe.summing(s)) for bucket, s in self.pipe.bucket_stages if bucket.name in self.packed]
        ready = {bucket.name: self.packed[bucket.name] for bucket, _ in mine}
        for bucket, how in mine:
            if len(how.group) > 1:
                ready[bucket.name] = self._sum(bucket, how, ready[bucket.name])
        bound = self.pipe.graph.clip_norm
        if bound:
            for bucket, _ in mine:
                ready[bucket.name] = self._scale(bucket, ready[bucket.name])
            shares = norm_shares({bucket.name: how.group for bucket, how in mine}, self._column())
            waits = tuple(After(one) for one in dict.fromkeys(ready.values()))
            self.body += bounded(bound, shares, self.pipe.columns, waits, lane="compute", wire="wire")
        for bucket, _ in mine:
            if not bound:
                ready[bucket.name] = self._scale(bucket, ready[bucket.name])
            self._add(f"U{bucket.name[1:]}", Update(bucket.name), "compute", ready[bucket.name])

    def _sum(self, bucket: Bucket, how: Summing, pack: str) -> str:
        """The name of that after which the sum of a bucket is there; what encodes it follows its last Pack."""
        place = next(n for n, one in enumerate(self.body) if one.name == pack) + 1
        if how.wire.codecs and WEIGHT in self.packed:
            pack = self._scale(bucket, pack)
            self.means.add(bucket.name)
            self.body.insert(place, self.body.pop())
            place += 1
        made = summed(how, bucket.name[1:], bucket, "wire", pack)
        self.body[place:place] = made.first
        self.body += made.then
        return made.last

    def _column(self) -> Ranks:
        return next(ranks for ranks in self.pipe.columns if self.replicas.ranks[0] in ranks)

    def _scale(self, bucket: Bucket, ready: str) -> str:
        """The name of that after which a sum over samples that is `ready` is a mean, where the loss is a sum with a
        weight."""
        if WEIGHT not in self.packed or bucket.name in self.means:
            return ready
        act = Scale(bucket.name, space=Space.GRADIENT, by=WEIGHT)
        return self._add(f"W{bucket.name[1:]}", act, "compute", ready, "AW")
