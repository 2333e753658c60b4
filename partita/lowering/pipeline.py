"""What the ranks of a pipeline share: the divided graph, who holds which stage, who runs which microbatches.

replicas of the mesh     every replica takes part of the minibatch, in `m` microbatches of its own
    stage 0   rank 0: 0 1 2 3    rank 1: 0 1 2 3
    stage 1   rank 2: 0 1 2 3    rank 3: 0 1 2 3        rank 0 speaks with rank 2, rank 1 with rank 3

replicas of stages       the minibatch's `m` microbatches are dealt out in turn, forward and backward of one to the same
    stage 0   rank 0: 0 2        rank 1: 1 3            (PipeDream's 1F1B-RR; Narayanan et al., SOSP 2019)
    stage 1   rank 2: 0 1 2 3                           rank 2 takes from rank 0 and rank 1 in turn
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from partita.graph.graph import Graph
from partita.graph.homes import stage_starts
from partita.graph.operator import Phase
from partita.graph.recompute import recomputed
from partita.graph.stages import Crossing, Partition, divide
from partita.lowering.coding import Summing, codings
from partita.lowering.layout import bucket_ends, buckets_of
from partita.lowering.recomputation import computed_again
from partita.lowering.samples import microbatches, replica_groups
from partita.plan.plan import Plan, agreement_of
from partita.plan.schedule import Order
from partita.program.layout import Bucket, Coding, even

Ranks = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StageReplicas:
    """Replicas of the stages of one place that run alike: microbatches `numbers`, the k-th of `counts[k]` samples from
    position `starts[k]` of the minibatch (one for each rank). `columns` are the replicas of the mesh that the ranks are
    of."""

    name: str
    ranks: Ranks
    numbers: tuple[int, ...]
    counts: tuple[int, ...]
    starts: tuple[tuple[int, ...], ...]
    columns: tuple[int, ...] = ()


@dataclass(frozen=True)
class Pipeline:
    """A plan with stages on a graph."""

    graph: Graph
    plan: Plan

    @cached_property
    def partition(self) -> Partition:
        """The stages' graphs, the same for all plans that cut alike: what is known of them is found once."""
        graph, separate = self.graph, self.plan.schedule.order is Order.ZERO_BUBBLE
        starts, again = stage_starts(graph, [s.first for s in self.plan.stages]), computed_again(graph, self.plan)
        key = ("partition", starts, separate, again, graph.global_batch)
        return graph.once(key, lambda: _partitioned(graph, starts, separate, again))

    @cached_property
    def crossings(self) -> dict[tuple[int, Phase], tuple[Crossing, ...]]:
        """What crosses from or to a stage with its forward or backward pass."""
        found: dict[tuple[int, Phase], list[Crossing]] = {}
        for crossing in self.partition.crossings:
            for stage in dict.fromkeys((crossing.source, crossing.target)):
                found.setdefault((stage, crossing.phase), []).append(crossing)
        return {key: tuple(each) for key, each in found.items()}

    @cached_property
    def reads_samples(self) -> tuple[bool, ...]:
        """Which stages read samples."""
        names = {name for name, _ in self.graph.inputs}
        return tuple(any(n.split(">")[0] in names for n, _ in stage.inputs) for stage in self.partition.stages)

    @cached_property
    def ranks(self) -> tuple[Ranks, ...]:
        """By place along the pipe, the rank of each replica."""
        mesh = self.plan.mesh
        if self.round_robin:
            return tuple(stage.ranks for stage in self.plan.stages)
        found: list[list[int]] = [[] for _ in range(mesh.length("pipe"))]
        for rank in range(mesh.size):
            found[mesh.coordinate(rank, "pipe")].append(rank)
        return tuple(tuple(sorted(ranks, key=lambda r: mesh.coordinate(r, "data"))) for ranks in found)

    @cached_property
    def round_robin(self) -> bool:
        """Whether stages have replicas of their own, to which microbatches go round robin."""
        return any(stage.ranks for stage in self.plan.stages)

    def holders(self, stage: int) -> Ranks:
        """The ranks that hold a stage, one for each replica."""
        return self.ranks[stage % len(self.ranks)]

    @cached_property
    def batch(self) -> int:
        """Samples of a minibatch."""
        return self.graph.minibatch

    def replica_sets(self, place: int) -> Iterator[StageReplicas]:
        """Who runs what at a place along the pipe."""
        ranks, m = self.ranks[place], self.plan.schedule.microbatches
        if self.round_robin:
            edges = even(self.batch, m)
            for replica, rank in enumerate(ranks):
                mine = tuple(range(replica, m, len(ranks)))
                counts = tuple(edges[i + 1] - edges[i] for i in mine)
                yield StageReplicas(f"stage-{place}.{replica}", (rank,), mine, counts, tuple((edges[i],) for i in mine))
            return
        for group in replica_groups(self.batch, self.plan.mesh.length("data"), m):
            counts = microbatches(group.count, self.plan)
            starts = tuple(tuple(start + sum(counts[:k]) for start in group.starts) for k in range(m))
            mine = tuple(ranks[column] for column in group.ranks)
            yield StageReplicas(f"stage-{place}-{group.count}", mine, tuple(range(m)), counts, starts, group.ranks)

    def peers(self, replicas: StageReplicas, stage: int, number: int) -> Ranks:
        """For each rank of these replicas the one that runs its microbatch `number` through `stage`."""
        holders = self.holders(stage)
        if self.round_robin:
            return (holders[number % len(holders)],)
        return tuple(holders[column] for column in replicas.columns)

    def ahead(self, place: int) -> int:
        """Forwards before the first backward in 1F1B: as many as later ranks can work on for each of this place's."""
        return sum(map(len, self.ranks[place + 1 :])) // len(self.ranks[place])

    @cached_property
    def bucket_stages(self) -> tuple[tuple[Bucket, tuple[int, ...]], ...]:
        """Every bucket and the stages that hold its parameters."""
        wire = agreement_of(self.plan).wire
        holders = dict(self.partition.holders)
        found: list[tuple[Bucket, tuple[int, ...]]] = []
        for stages in sorted(set(holders.values()), key=lambda s: (len(s), s)):
            one = self.partition.stages[stages[0]] if len(stages) == 1 else self.graph
            gradients = tuple((name, ref) for name, ref in one.gradients if holders[name] == stages)
            for bucket in buckets_of(replace(one, gradients=gradients), wire):
                found.append((replace(bucket, name=f"b{len(found)}"), stages))
        return tuple(found)

    def group(self, stages: tuple[int, ...]) -> Ranks:
        """The ranks that must agree on a bucket of these stages."""
        return tuple(sorted({rank for stage in stages for rank in self.holders(stage)}))

    def summing(self, stages: tuple[int, ...]) -> Summing:
        """Who sums up the gradients of a bucket of these stages. What ranks of several places hold is sent as it is:
        none of them has the gradient of any samples."""
        wire = agreement_of(self.plan).wire
        wire = wire if len({stage % len(self.ranks) for stage in stages}) == 1 else replace(wire, codecs=())
        return Summing(self.graph, wire, self.group(stages), self.plan.update)

    @property
    def codings(self) -> tuple[Coding, ...]:
        """Those of all buckets that are summed up."""
        each = ((bucket, self.summing(stages)) for bucket, stages in self.bucket_stages)
        return tuple(made for bucket, how in each if len(how.group) > 1 for made in codings(how, bucket))

    @cached_property
    def everybody(self) -> Ranks:
        """All ranks, in order."""
        return tuple(sorted(rank for ranks in self.ranks for rank in ranks))

    @cached_property
    def columns(self) -> tuple[Ranks, ...]:
        """Ranks that hold the whole model together, also those without weights: one replica's, or all."""
        sets = (self.everybody,) if self.round_robin else zip(*self.ranks, strict=True)
        return tuple(tuple(sorted(ranks)) for ranks in sets)

    @cached_property
    def weight_stage(self) -> int:
        """The stage that knows what samples weigh; -1 where the loss is a mean over samples."""
        return next((n for n, stage in enumerate(self.partition.stages) if stage.weight is not None), -1)

    def share(self, count: int) -> float:
        """What a microbatch of `count` samples counts of the loss: 1 where that is a sum."""
        return count / self.batch if self.weight_stage < 0 else 1.0

    def buckets(self, stage: int) -> tuple[Bucket, ...]:
        """The buckets of a stage's parameters, also of tied ones."""
        return tuple(bucket for bucket, stages in self.bucket_stages if stage in stages)

    def runs(self, stage: int, kind: str, last: bool) -> list[tuple[int, int, tuple[Bucket, ...]]]:
        """(start, stop, buckets complete then) of a pass; the one that completes the minibatch's gradients is cut
        where a bucket is complete, if replicas wait for it."""
        graph, part = self.partition.stages[stage], self.partition.parts[stage]
        start, stop = {"F": (0, graph.forward_length), "B": (graph.forward_length, part)}.get(
            kind, (part, len(graph.operators))
        )
        if kind == "F" or (kind == "B" and self.plan.schedule.order is Order.ZERO_BUBBLE):
            return [(start, stop, ())]
        buckets = self.buckets(stage)
        own = tuple(b for b, stages in self.bucket_stages if stages == (stage,))
        if not last or len(self.holders(stage)) == 1 or not own:
            return [(start, stop, buckets)]
        edges = [max(edge, start) for edge in bucket_ends(graph, own)]
        found = [(a, b, (bucket,)) for a, b, bucket in zip([start, *edges], edges, own, strict=False)]
        shared = tuple(b for b in buckets if b not in own)
        return [*found[:-1], (*found[-1][:2], (own[-1], *shared))]


def _partitioned(graph: Graph, starts: tuple[int, ...], separate: bool, again: frozenset[str]) -> Partition:
    """The stages that begin at these operators, with what backward computes again."""
    found = divide(graph, starts, separate=separate)
    made = [recomputed(stage, again) for stage in found.stages]
    parts = tuple(one.places[part] for one, part in zip(made, found.parts, strict=True))
    return replace(found, stages=tuple(one.graph for one in made), parts=parts)
