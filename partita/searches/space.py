"""The grid of `auto`: data x pipeline x schedule x microbatches x shard x recompute x bucket size, as columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from partita.arrays import Flags, Indices, Ints, Reals
from partita.cluster.cluster import Cluster
from partita.errors import LoweringError
from partita.graph.graph import Graph
from partita.graph.recompute import recomputable
from partita.graph.statistics import fewest_samples
from partita.lowering.gaps import refuse
from partita.plan.memory import Memory, Recompute, Shard
from partita.plan.mesh import Mesh, Stage
from partita.plan.plan import Plan
from partita.plan.schedule import Order, Schedule
from partita.plan.sync import Sync
from partita.units import Bytes

# Recipe, order of passes, stages of each place along the pipe.
SCHEDULES: Final = (
    ("ddp", Order.SEQUENTIAL, 1), ("gpipe", Order.FILL_DRAIN, 1), ("one_f_one_b", Order.ONE_F_ONE_B, 1),
    ("zero_bubble", Order.ZERO_BUBBLE, 1), ("interleaved", Order.INTERLEAVED, 2), ("interleaved", Order.INTERLEAVED, 4),
)  # fmt: skip
ORDERS: Final = tuple(order for _, order, _ in SCHEDULES)
CHUNKS: Final = np.array([chunks for _, _, chunks in SCHEDULES])
SHARDS: Final = tuple(Shard)  # each divides what the one before does, and more
RECOMPUTES: Final = (Recompute.NONE, Recompute.SELECTIVE, Recompute.FULL)
PARTS: Final[tuple[int, ...]] = (1, 4, 16, 64)  # into which a rank's gradients are divided to travel
LEAST_BUCKET: Final = 2**18
SHAPE: Final = ("data", "pipe", "schedule", "microbatches", "shard", "recompute")


@dataclass(frozen=True)
class Space:
    """Of each point its shape, a column for each of SHAPE, and the bytes of its buckets: schedule, shard and recompute
    are places in SCHEDULES, SHARDS and RECOMPUTES. `refused` says what of them is not proposed, and why."""

    shapes: Indices
    buckets: Ints
    refused: tuple[tuple[str, str], ...] = field(default=())

    def __len__(self) -> int:
        return len(self.shapes)

    def column(self, name: str) -> Ints:
        """A column of SHAPE, shape [points]."""
        return self.shapes[:, SHAPE.index(name)].astype(np.int64)

    @property
    def chunks(self) -> Ints:
        """Stages of each place along the pipe, shape [points]."""
        return CHUNKS[self.column("schedule")]

    def ordered(self, order: Order) -> Flags:
        """The points whose passes are in an order, shape [points]."""
        return in_order(self.column("schedule"), order)

    def by_shard(self, times: Mapping[Shard, float]) -> Reals:
        """What `times` has for each point's division of state (0 where it has nothing), shape [points]."""
        return np.array([float(times.get(kind, 0.0)) for kind in SHARDS])[self.column("shard")]

    @property
    def groups(self) -> tuple[Ints, Ints]:
        """A point of each group, and which group each point is of: points that are alike in replicas, stages, and
        whether state is divided."""
        columns = (self.column(name) for name in ("data", "pipe", "schedule"))
        sizes = (*(self.shapes.max(axis=0)[:3] + 1), 2)
        code = np.ravel_multi_index((*columns, self.column("shard") > 0), sizes)
        first = np.flatnonzero(np.diff(code, prepend=-1))  # neighbours are mostly of one group
        _, points, which = np.unique(code[first], return_index=True, return_inverse=True)
        return first[points], np.repeat(which, np.diff(first, append=len(code)))

    def some(self, at: Ints | list[int] | slice) -> Space:
        """The points of these places."""
        return Space(self.shapes[at], self.buckets[at])

    def call(self, i: int) -> str:
        """The recipe call of a point."""
        data, pipe, schedule, m, shard, recompute = self.shapes[i].tolist()
        recipe, _, chunks = SCHEDULES[schedule]
        knobs = [f"data={data}", f"microbatches={m}", f"bucket_bytes={self.buckets[i]}"]
        if pipe == data == 1:
            recipe, knobs = "single", [f"microbatches={m}"] if m > 1 else []
        elif pipe > 1:
            knobs = [f"stages={pipe}", *([f"chunks={chunks}"] if chunks > 1 else []), *knobs]
        knobs += [f"shard={SHARDS[shard]}"] if shard else []
        knobs += [f"recompute={RECOMPUTES[recompute]}"] if recompute else []
        return f"{recipe}({','.join(knobs)})" if knobs else recipe


def in_order(schedule: Ints, order: Order) -> Flags:
    """Which of these places in SCHEDULES have their passes in an order."""
    found: Flags = np.array([each is order for each in ORDERS])[schedule]
    return found


def divides(shard: Ints, kind: Shard) -> Flags:
    """Which of these places in SHARDS divide what `kind` divides: the optimizer's state, gradients too, or parameters
    too."""
    return shard >= SHARDS.index(kind)


def space_of(graph: Graph, cluster: Cluster, blocks: int, trained: Bytes) -> Space:
    """Every point that the devices, the minibatch and the model's `blocks` allow and that can be lowered; gradients
    take `trained` bytes."""
    batch, size, least = graph.minibatch, cluster.size, fewest_samples(graph)
    divisors = [d for d in range(1, batch + 1) if batch % d == 0]
    uneven = [size] if batch > size and batch % size else []  # all devices, some with a sample more
    groups, refused = list[_Group](), []
    for schedule, (name, order, chunks) in enumerate(SCHEDULES):
        kinds = []
        for shard, recompute, why in _kinds(graph, order, chunks):
            if why:
                refused.append((f"{name}(shard={SHARDS[shard]},recompute={RECOMPUTES[recompute]})", why))
            else:
                kinds.append((shard, recompute))
        for data in (d for d in (*divisors, *uneven) if d <= size):
            for m in (m for m in divisors if (batch // data) % m == 0 and (m == 1 or data not in uneven)):
                if batch // data // m < least:
                    continue
                lengths = _lengths(order, size // data, blocks // chunks, m)
                if kinds and len(lengths):
                    groups.append(_Group(data, lengths, schedule, m, np.array(kinds)))
    return _written(groups, trained, tuple(refused))


@dataclass(frozen=True, eq=False)
class _Group:
    """Points of one degree of data, one schedule and one number of microbatches: pipes of all these lengths, with all
    these kinds of (shard, recompute)."""

    data: int
    lengths: Ints
    schedule: int
    m: int
    kinds: Ints

    def points(self, trained: Bytes) -> tuple[Indices, Ints]:
        """Their shapes and buckets."""
        kinds, parts = self.kinds, PARTS
        if self.data == 1:  # nothing is agreed on, so nothing can be sharded, nor does it matter what travels together
            kinds, parts = kinds[kinds[:, 0] == 0], (PARTS[0],)
        sizes = bucket_of(-(-trained // (self.lengths[:, None] * parts)))
        shapes = np.empty((len(self.lengths), len(kinds), len(parts), len(SHAPE)), np.int32)
        shapes[...] = self.data, 0, self.schedule, self.m, 0, 0
        shapes[..., 1], shapes[..., 4:6] = self.lengths[:, None, None], kinds[:, None]
        buckets = np.broadcast_to(sizes[:, None], shapes.shape[:-1])
        other = np.diff(buckets, axis=2, prepend=0) != 0
        return shapes[other], buckets[other]


def _written(groups: list[_Group], trained: Bytes, refused: tuple[tuple[str, str], ...]) -> Space:
    """All of their points, written where they stay: of a large grid it is the memory that takes its time."""
    most = sum(len(group.lengths) * len(group.kinds) for group in groups) * len(PARTS)
    shapes, buckets, end = np.empty((most, len(SHAPE)), np.int32), np.empty(most, np.int64), 0
    for group in groups:
        some, sizes = group.points(trained)
        begin, end = end, end + len(some)
        shapes[begin:end], buckets[begin:end] = some, sizes
    return Space(shapes[:end], buckets[:end], refused)


def _lengths(order: Order, most: int, blocks: int, microbatches: int) -> Ints:
    """The lengths of a pipe that a schedule takes; interleaved microbatches go round in groups of its length."""
    if order is Order.SEQUENTIAL:
        return np.ones(1, np.int64)
    found = np.arange(2, min(most, blocks) + 1, dtype=np.int64)
    return found[microbatches % found == 0] if order is Order.INTERLEAVED else found


def bucket_of(size: Ints) -> Ints:
    """The bucket that holds so many bytes: a power of two."""
    found: Ints = np.maximum(2 ** np.ceil(np.log2(np.maximum(size, 1))).astype(np.int64), LEAST_BUCKET)
    return found


def least_bucket(trained: Bytes) -> Bytes:
    """The smallest one in a space of so many bytes of gradients that are not divided among stages."""
    return int(bucket_of(np.array([-(-trained // PARTS[-1])]))[0])


def usual(graph: Graph) -> str:
    """The plan that is asked about where none is named, and that `auto` has to be better than: data parallelism over
    all devices, its gradients in at most about 64 messages."""
    size = graph.trained_bytes // PARTS[-1]
    return f"ddp(bucket_bytes={size})" if size > 4 * 2**20 else "ddp"


def _kinds(graph: Graph, order: Order, chunks: int) -> Iterator[tuple[int, int, str]]:
    """(shard, recompute, why it cannot be lowered yet); no recomputing of a model of which nothing can be."""
    rules = RECOMPUTES if recomputable(graph) else RECOMPUTES[:1]
    for shard, state in enumerate(SHARDS):
        for again, recompute in enumerate(rules):
            staged = order is not Order.SEQUENTIAL
            axes = (("pipe", 2), ("data", 2)) if staged else (("data", 2),)
            plan = Plan(
                order.value, Mesh(axes), stages=(Stage(),) * (2 * chunks) if staged else (),
                schedule=Schedule(order, 2, chunks), sync=(Sync(),), memory=Memory(shard=state, recompute=recompute),
            )  # fmt: skip
            try:
                refuse(graph, plan)
            except LoweringError as error:
                yield shard, again, str(error)
            else:
                yield shard, again, ""
