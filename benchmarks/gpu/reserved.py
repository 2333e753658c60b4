"""What torch's caching allocator is thought to hold of a card under a plan of one rank: its values, replayed."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

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
from partita.program.program import Program
from partita.units import Bytes

ROUNDS = 3


def held_by(program: Program, graph: Graph, kept: Bytes, courses: Mapping[str, Course]) -> Bytes:
    """Bytes of all segments after some rounds of the only rank's lane that computes, by the courses of its operators,
    where libraries keep some."""
    role, step = program.roles[0], program.graph_of(-1, graph)
    acts = [i.act for i in role.instructions]
    batch = next(segment.batch for segment in program.segments)
    lifetimes, pool, kinds = lifetimes_of(step, batch, card=True), Allocator(), kinds_of(step)
    each = [courses.get(signature(operator, concrete), ()) for operator, concrete in kinds.at(batch)]
    pool.take("kept", kept)
    loads, goes = dict(step.inputs), dict[int, list[Hashable]]()
    for ref, end in lifetimes.last.items():
        if ref not in lifetimes.gradients:
            goes.setdefault(end, []).append(ref if ref in lifetimes.made else (ref.name,))
    states = graph.optimizer.state_bytes(1) // 4
    for dtype in sorted({b.dtype for b in program.trained}):
        pool.take(("weights", dtype), sum(b.elements for b in program.trained if b.dtype == dtype) * ITEMSIZE[dtype])
    for b in program.trained:
        if b.master:
            pool.take(("master", b.name), b.elements * ITEMSIZE[b.master])
    for buffer in step.buffers:
        pool.take(("buffer", buffer.name), buffer.tensor.size())
    first: dict[int, list[Ref]] = {}
    for ref, at in lifetimes.made.items():
        first.setdefault(at, []).append(ref)
    shapes = {p.name: p.tensor.elements() for p in step.parameters}
    for round in range(ROUNDS):
        here = set[Hashable]()

        def give(key: Hashable, here: set[Hashable] = here) -> None:
            if key in here:
                here.discard(key)
                pool.give(key)

        for act in acts:
            if isinstance(act, Load):
                for name, tensor in loads.items():
                    pool.take((name,), tensor.size(batch))
                    here.add((name,))
            elif isinstance(act, Compute):
                segment = program.segment[act.segment]
                for at in range(segment.start, segment.stop):
                    made: dict[Hashable, Bytes] = {ref: lifetimes.size(ref) for ref in first.get(at, ())}
                    follow(pool, made, each[kinds.number[at]])
                    here.update(made)
                    for key in goes.get(at, ()):
                        give(key)
            elif isinstance(act, Update):
                bucket = program.bucket[act.bucket]
                wide = ITEMSIZE[bucket.master or bucket.dtype]
                sizes = [shapes[piece.parameter] * wide for piece in bucket.pieces]
                copies = 1 if bucket.master else 0
                scratch = [(k, i, n) for k in range(copies + SCRATCH.get(graph.optimizer.name, 1))
                           for i, n in enumerate(sizes)]  # fmt: skip
                if round == 0:
                    for k in range(states):
                        for piece, n in zip(bucket.pieces, sizes, strict=True):
                            pool.take(("state", k, bucket.name, piece.parameter), n)
                for k, i, n in scratch:
                    pool.take(("scratch", k, i), n)
                for k, i, _ in scratch:
                    pool.give(("scratch", k, i))
                for piece in bucket.pieces:
                    if (gradient := lifetimes.gradient_of.get(piece.parameter)) is not None:
                        give(lifetimes.root.get(gradient, gradient))
        for key in list(here):
            give(key)
    return pool.held


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
