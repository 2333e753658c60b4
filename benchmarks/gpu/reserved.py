"""What torch's caching allocator is thought to hold of a card under a plan of one rank: its values, replayed."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from itertools import product

from benchmarks.gpu.courses import Course
from partita.cost.allocator import LEAST, Allocator
from partita.cost.lifetimes import lifetimes_of
from partita.cost.scratch import SCRATCH
from partita.graph.graph import Graph
from partita.graph.kinds import kinds_of
from partita.graph.operator import Ref
from partita.graph.signature import signature
from partita.graph.tensor import ITEMSIZE
from partita.program.instruction import Compute, Load, Update
from partita.program.layout import Bucket
from partita.program.program import Program, Segment
from partita.units import Bytes

ROUNDS = 3


class _Replay:
    """The values of a Program's only rank in an allocator; lives for one call of `held_by`. `here` are those of a round
    that are there now."""

    def __init__(self, program: Program, graph: Graph, courses: Mapping[str, Course]) -> None:
        self.program, self.graph, self.step = program, graph, program.graph_of(-1, graph)
        self.batch = next(segment.batch for segment in program.segments)
        self.pool, self.kinds, self.here = Allocator(), kinds_of(self.step), set[Hashable]()
        self.lifetimes = lifetimes_of(self.step, self.batch, card=True)
        self.courses = [courses.get(signature(operator, at), ()) for operator, at in self.kinds.at(self.batch)]
        self.made: dict[int, list[Ref]] = {}  # by operators, which also are the last to read others (`ends`)
        for ref, at in self.lifetimes.made.items():
            self.made.setdefault(at, []).append(ref)
        self.ends: dict[int, list[Hashable]] = {}
        for ref, at in self.lifetimes.last.items():
            if ref not in self.lifetimes.gradients:
                self.ends.setdefault(at, []).append(ref if ref in self.lifetimes.made else (ref.name,))

    def keep(self, kept: Bytes) -> None:
        """Take what is there from the first step on; libraries keep `kept` of it."""
        self.pool.take("kept", kept)
        trained = self.program.trained
        for dtype in sorted({b.dtype for b in trained}):
            elements = sum(b.elements for b in trained if b.dtype == dtype)
            self.pool.take(("weights", dtype), elements * ITEMSIZE[dtype])
        for bucket in trained:
            if bucket.master:
                self.pool.take(("master", bucket.name), bucket.elements * ITEMSIZE[bucket.master])
        for buffer in self.step.buffers:
            self.pool.take(("buffer", buffer.name), buffer.tensor.size())

    def load(self) -> None:
        """Take the inputs of a step."""
        for name, tensor in self.step.inputs:
            self.pool.take((name,), tensor.size(self.batch))
            self.here.add((name,))

    def compute(self, segment: Segment) -> None:
        """Go through the operators of a segment."""
        for at in range(segment.start, segment.stop):
            made: dict[Hashable, Bytes] = {ref: self.lifetimes.size(ref) for ref in self.made.get(at, ())}
            follow(self.pool, made, self.courses[self.kinds.number[at]])
            self.here.update(made)
            for key in self.ends.get(at, ()):
                self.give(key)

    def update(self, bucket: Bucket, *, first: bool) -> None:
        """Take a step on a bucket, whose state the `first` one makes, and give its gradients back."""
        shapes = {parameter.name: parameter.tensor.elements() for parameter in self.step.parameters}
        sizes = [shapes[piece.parameter] * ITEMSIZE[bucket.master or bucket.dtype] for piece in bucket.pieces]
        states = self.graph.optimizer.state_bytes(1) // 4 if first else 0
        for k, (piece, size) in product(range(states), list(zip(bucket.pieces, sizes, strict=True))):
            self.pool.take(("state", k, bucket.name, piece.parameter), size)
        copies = SCRATCH.get(self.graph.optimizer.name, 1) + (1 if bucket.master else 0)
        scratch = {("scratch", k, i): size for k, (i, size) in product(range(copies), list(enumerate(sizes)))}
        for key, size in scratch.items():
            self.pool.take(key, size)
        for key in scratch:
            self.pool.give(key)
        for piece in bucket.pieces:
            if (gradient := self.lifetimes.gradient_of.get(piece.parameter)) is not None:
                self.give(self.lifetimes.root.get(gradient, gradient))

    def give(self, key: Hashable) -> None:
        """Give a value of the round back, if it is there."""
        if key in self.here:
            self.here.discard(key)
            self.pool.give(key)


def held_by(program: Program, graph: Graph, kept: Bytes, courses: Mapping[str, Course]) -> Bytes:
    """Bytes of all segments after some rounds of the only rank's lane that computes, by the courses of its operators,
    where libraries keep some."""
    replay = _Replay(program, graph, courses)
    replay.keep(kept)
    for round in range(ROUNDS):
        for act in (i.act for i in program.roles[0].instructions):
            if isinstance(act, Load):
                replay.load()
            elif isinstance(act, Compute):
                replay.compute(program.segment[act.segment])
            elif isinstance(act, Update):
                replay.update(program.bucket[act.bucket], first=round == 0)
        for key in list(replay.here):
            replay.give(key)
    return replay.pool.held


def follow(pool: Allocator, made: Mapping[Hashable, Bytes], course: Course) -> None:
    """Take and give as an operator does that makes some values; what it keeps besides goes when it ends."""
    left, given = dict(made), {-1 - step for step in course if step < 0}
    keys: list[Hashable] = []
    for step in course:
        if step < 0:
            pool.give(keys[-1 - step])
            continue
        mine = len(keys) not in given
        own = next((key for key, size in left.items() if mine and -(-size // LEAST) == -(-step // LEAST)), None)
        keys.append(("space", len(keys)) if own is None else own)
        pool.take(keys[-1], step if own is None else left.pop(own))
    for k, key in enumerate(keys):
        if key == ("space", k) and k not in given:
            pool.give(key)
    for key, size in left.items():
        pool.take(key, size)
