"""Who takes which samples, and the order of loading, forward and backward on each worker."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise

from partita.errors import PlanError
from partita.graph.graph import Graph
from partita.lowering.factors import Factors, Layer, parcel_of
from partita.lowering.layout import bucket_ends, buckets_of, readers_of
from partita.lowering.readers import parameter_readers
from partita.plan.plan import Plan, agreement_of, own_servers
from partita.plan.sync import Servers, Sync
from partita.program.instruction import After, Compute, Instruction, Load, Pack
from partita.program.layout import WEIGHT, Bucket, Parcel, even, of_one_number
from partita.program.program import Program, Segment
from partita.wire.algorithms import algorithm_for

Places = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ReplicaGroup:
    """Data-parallel workers that take `count` samples each, from positions `starts` of every minibatch."""

    ranks: tuple[int, ...]
    starts: tuple[int, ...]
    count: int

    @property
    def name(self) -> str:
        """What its role is called."""
        return f"worker-{self.count}"


@dataclass(frozen=True)
class Draft:
    """How the workers of one phase compute: what each way to agree adds its messages and updates to.

    graph, plan  the step, and the plan of the phase
    buckets      gradients that travel together, in the order in which backward completes them
    groups       workers that take equally many samples
    segments     runs of operators, for each number of samples that is needed
    batch        samples of a minibatch
    needs        for each forward segment the buckets that it is the first to read
    factors      the layers whose gradients travel as factors, if there are any
    steps        minibatches of a last round that is shorter, where servers go ahead; else 0
    """

    graph: Graph
    plan: Plan
    buckets: tuple[Bucket, ...]
    groups: tuple[ReplicaGroup, ...]
    segments: tuple[Segment, ...]
    batch: int
    needs: tuple[Places, ...]
    factors: Factors | None = None
    steps: int = 0

    @property
    def pushes(self) -> tuple[int, ...]:
        """The minibatches of each push of a round; those of a shorter one are as many, but for its last push."""
        frequency = self.sync.frequency
        steps = self.steps or frequency.period * frequency.fetch
        return tuple(min(frequency.period, steps - begun) for begun in range(0, steps, frequency.period))

    @cached_property
    def factored(self) -> dict[int, Layer]:
        """The buckets whose gradients travel as factors."""
        if self.factors is None or not self.factors.layers:
            return {}
        number, served = self.factors.number, self.factors.served
        counts = {rank: microbatches(group.count, self.plan) for group in self.groups for rank in group.ranks}
        named = {i: bucket.pieces[0].parameter for i, bucket in enumerate(self.buckets)}
        return {i: Layer(number[name], i, counts, name in served) for i, name in named.items() if name in number}

    @cached_property
    def last(self) -> Places:
        """For each bucket the one, itself or a later one, with whose backward its weights are read for the last
        time."""
        edges, read = bucket_ends(self.graph, self.buckets), parameter_readers(self.graph)
        places = ([p for piece in bucket.pieces for p in read[piece.parameter]] for bucket in self.buckets)
        return tuple(max(i, bisect_right(edges, max(found, default=0))) for i, found in enumerate(places))

    def spent(self, i: int, step: int = 0) -> After:
        """After what backward does not read the weights of bucket `i` any more in a step of the round."""
        count = self.plan.schedule.microbatches
        return After(f"B{self.last[i]}{_mark(step, count - 1, count)}")

    @property
    def weight(self) -> Bucket | None:
        """What the weights of all parts are summed in, where the loss is a sum with a weight."""
        return of_one_number(WEIGHT) if self.graph.weight is not None else None

    @property
    def labels(self) -> dict[str, Bucket]:
        """What instructions call each bucket that is agreed on, the weight first."""
        weight = {"W": self.weight} if self.weight else {}
        return weight | {str(i): bucket for i, bucket in enumerate(self.buckets)}

    def algorithm(self, bucket: str) -> str:
        """The algorithm by which a bucket, or what is kept of it, is summed."""
        found = next((one for one in self.buckets if one.name == bucket), of_one_number(bucket))
        return algorithm_for(self.sync.wire, found.size)

    @property
    def workers(self) -> tuple[int, ...]:
        """The ranks that compute, in order."""
        return tuple(sorted(rank for group in self.groups for rank in group.ranks))

    @property
    def servers(self) -> tuple[int, ...]:
        """The ranks that serve: those behind the workers, or some of these."""
        through, size = self.sync.through, self.plan.mesh.size
        if isinstance(through, Servers) and not through.own:
            return through.at or tuple(range(through.count))
        return tuple(range(size, size + own_servers(self.plan)))

    @property
    def sync(self) -> Sync:
        """The plan's first agreement, the default one where it has none."""
        return agreement_of(self.plan)


def draft(
    graph: Graph, plan: Plan, *, cut: bool = False, factors: Factors | None = None, steps: int = 0
) -> Draft:  # fmt: skip
    """Groups of workers, and segments, for the plan's mesh; with `cut`, forward is cut where it first reads a bucket.
    Layers whose `factors` travel have buckets of their own. `steps` as in Draft.

    Raises PlanError where a rank would get no sample.
    """
    sync = agreement_of(plan)
    buckets = buckets_of(graph, sync.wire, tuple(factors.number) if factors else ())
    batch = graph.minibatch
    groups = replica_groups(batch, plan.mesh.size, plan.schedule.microbatches)
    forward, needs = _forward(graph, buckets, cut)
    found = {
        s.name: s
        for group in groups
        for count in microbatches(group.count, plan)
        for s in _segments(graph, buckets, forward, count, batch)
    }
    return Draft(graph, plan, buckets, groups, tuple(found.values()), batch, needs, factors, steps)


def replica_groups(batch: int, workers: int, microbatches: int) -> tuple[ReplicaGroup, ...]:
    """The minibatch in contiguous parts, as even as it goes; workers with equal parts form a group. Raises
    PlanError where some microbatch would have no sample."""
    if batch < workers * microbatches:
        raise PlanError(
            f"a minibatch of {batch} samples cannot be divided over {workers} workers x {microbatches} microbatches; "
            f"use fewer of both, {batch} parts at most, or a larger batch_size"
        )
    edges = even(batch, workers)
    counts: dict[int, list[int]] = {}
    for rank in range(workers):
        counts.setdefault(edges[rank + 1] - edges[rank], []).append(rank)
    return tuple(ReplicaGroup(tuple(ranks), tuple(edges[r] for r in ranks), count) for count, ranks in counts.items())


def separate(group: ReplicaGroup, hosts: Places) -> list[ReplicaGroup]:
    """A group without those of `hosts`, and each of these by itself."""
    place = {rank: i for i, rank in enumerate(group.ranks)}
    parts = [tuple(r for r in group.ranks if r not in hosts), *((r,) for r in group.ranks if r in hosts)]
    return [replace(group, ranks=some, starts=tuple(group.starts[place[r]] for r in some)) for some in parts if some]


def microbatches(count: int, plan: Plan) -> tuple[int, ...]:
    """Samples of each microbatch of a worker's part."""
    return tuple(stop - start for start, stop in pairwise(even(count, plan.schedule.microbatches)))


def sizes_of(plan: Plan, graph: Graph) -> tuple[int, ...]:
    """The batch sizes of all segments that a plan, and the phases before it, are lowered to."""
    workers = plan.mesh.length("data") if plan.stages else plan.mesh.size
    groups = replica_groups(graph.minibatch, workers, plan.schedule.microbatches)
    found = {count for group in groups for count in microbatches(group.count, plan)}
    for phase in plan.before:
        found |= set(sizes_of(phase.plan, graph))
    return tuple(sorted(found))


def _forward(graph: Graph, buckets: tuple[Bucket, ...], cut: bool) -> tuple[Places, tuple[Places, ...]]:
    """Where forward segments start, and for each the buckets that it needs.

    operators   0 ........ 7 ............ 15 ... forward's end
    reads       b2         b0 b1          b0     b3 (never)
    segments    F0 {b2}    F1 {b0, b1, b3}
    """
    if not cut:
        return (0,), (tuple(range(len(buckets))),)
    readers = readers_of(graph, buckets)
    starts = sorted({at for at in readers if at < graph.forward_length}) or [0]
    needs = [[i for i, at in enumerate(readers) if at == start] for start in starts]
    needs[-1] += [i for i, at in enumerate(readers) if at >= graph.forward_length]
    return (0, *starts[1:]), tuple(map(tuple, needs))


def forward_name(i: int, of: int) -> str:
    """What the i-th of `of` forward segments is called."""
    return f"F{i}" if of > 1 else "F"


def _segments(
    graph: Graph, buckets: tuple[Bucket, ...], forward: tuple[int, ...], count: int, batch: int
) -> list[Segment]:
    edges = (*forward, graph.forward_length, *bucket_ends(graph, buckets))
    names = [f"{forward_name(i, len(forward))}/{count}" for i in range(len(forward))]
    names += [f"B{i}/{count}" for i in range(len(buckets))]
    spans = zip(names, edges, edges[1:], strict=False)
    share = count / batch if graph.weight is None else 1.0
    return [Segment(name, start, stop, count, share) for name, start, stop in spans]


@dataclass(frozen=True, slots=True)
class ComputeStep:
    """A compute instruction; `needs` are the buckets that it is the first of its minibatch to read; `bucket` >= 0 if it
    completes that bucket's gradients of a microbatch, `last` if it is the minibatch's last microbatch."""

    instruction: Instruction
    bucket: int = -1
    part: str = ""
    last: bool = False
    needs: tuple[int, ...] = ()


def passes(draft: Draft, group: ReplicaGroup, step: int = 0, of: int = 0, *, direct: bool = False) -> list[ComputeStep]:
    """Load, F and B of one minibatch on a group of workers, in the order of its lanes.

    Gradients are means over `of` samples (0: the whole minibatch). Those of a weighted loss are sums, to be scaled once
    its weight is known; if they are used `direct`, without Pack, means. The next round's samples are loaded as soon as
    this round's forward has taken its own.
    """
    counts, found = microbatches(group.count, draft.plan), list[ComputeStep]()
    offset = 0
    for m, count in enumerate(counts):
        part, mark, last = f"{step}.{m}", _mark(step, m, len(counts)), m == len(counts) - 1
        share = count / (of or draft.batch) if draft.weight is None else float(not direct)
        load = Load(tuple(start + offset for start in group.starts), count, part, share, step)
        names = [forward_name(i, len(draft.needs)) for i in range(len(draft.needs))]
        found.append(ComputeStep(Instruction(f"L{mark}", load, "data", (After(f"{names[-1]}{mark}", 1),))))
        before = f"L{mark}"
        for name, needs in zip(names, draft.needs, strict=True):
            forward = Instruction(f"{name}{mark}", Compute(f"{name}/{count}", part, step), "compute", (After(before),))
            found.append(ComputeStep(forward, needs=() if m else needs))
            before = forward.name
        for i in range(len(draft.buckets)):
            backward = Instruction(f"B{i}{mark}", Compute(f"B{i}/{count}", part, step), "compute", (After(before),))
            found.append(ComputeStep(backward, i, part, last))
        offset += count
    return found


def _mark(step: int, m: int, count: int) -> str:
    """What the names of a step's m-th microbatch of `count` end with."""
    return (f".{step}" if step else "") + (f"#{m}" if count > 1 else "")


def packed(
    draft: Draft, steps: list[ComputeStep], after: dict[str, tuple[After, ...]], tag: str = ""
) -> list[Instruction]:
    """The instructions with a Pack of each bucket after the backward that completes it, and of the weight before the
    first backward; the minibatch's last one is named `P<label><tag>`. `after` tells by label what must be done before a
    bucket's gradient may be written anew."""
    found: list[Instruction] = []
    first = next(step.part for step in steps if step.bucket >= 0)
    pack = partial(_pack, after, tag, first)
    for step in steps:
        if draft.weight and step.bucket == 0:
            found.append(pack("W", draft.weight, step, found[-1].name))
        found.append(step.instruction)
        if step.bucket >= 0:
            found.append(pack(str(step.bucket), draft.buckets[step.bucket], step, step.instruction.name))
    return found


def _pack(
    after: dict[str, tuple[After, ...]], tag: str, first: str, label: str, bucket: Bucket, step: ComputeStep,
    before: str,
) -> Instruction:  # fmt: skip
    """The Pack of a bucket in a step, after the instruction `before`; it adds in all parts but the `first`."""
    add = step.part != first
    name = f"P{label}{tag}" if step.last else f"P{label}{tag}#{step.part}"
    waits = () if add else after.get(label, ())
    return Instruction(name, Pack(bucket.name, step.part, add), "compute", (After(before), *waits))


def with_factors(program: Program, draft: Draft) -> Program:
    """The program with the graphs, segments and parcels that its factors speak of."""
    stages = draft.factors.stages if draft.factors and draft.factored else ()
    counts = sorted({count for layer in draft.factored.values() for each in layer.counts.values() for count in each})
    both = [(n, stage, count) for n, stage in enumerate(stages) for count in counts]
    segments = [Segment(f"G{n}/{count}", 0, len(stage.operators), count, 0.0, n) for n, stage, count in both]
    parcels = [Parcel(parcel_of(n, count), stage.inputs, count) for n, stage, count in both]
    return replace(
        program, stages=(*program.stages, *stages), segments=(*program.segments, *segments),
        parcels=(*program.parcels, *parcels),
    )  # fmt: skip
