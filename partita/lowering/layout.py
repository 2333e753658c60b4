"""Which gradients travel together, and where the backward pass is cut so that they can leave early."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import accumulate
from typing import Final

from partita.graph.graph import Graph, Parameter
from partita.graph.tensor import ITEMSIZE
from partita.lowering.coupled import one_bucket
from partita.plan.wire import Priority, Wire
from partita.program.layout import Bucket, Piece, even
from partita.units import Bytes

URGENT: Final = 1 / 8
ALIGNED: Final = 8  # elements, 16 bytes in half precision: a card multiplies other matrices a fifth more slowly


def completion(graph: Graph) -> dict[str, int]:
    """Parameter -> how many operators must have run until its gradient is there; in that order."""
    at = {name: graph.index.get(ref.name, graph.forward_length) + 1 for name, ref in graph.gradients}
    return dict(sorted(at.items(), key=lambda one: one[1]))


def buckets_of(graph: Graph, wire: Wire, apart: Collection[str] = ()) -> tuple[Bucket, ...]:
    """Trainable parameters in the order in which backward completes them, in buckets that close once they hold
    `bucket_bytes` (the first one `first_bucket_bytes`); larger tensors are cut by rows into slices (CS-02).

    Tensors stay whole where the optimizer mixes their elements, and are all in one bucket where it steps them otherwise
    alone than together. One bucket holds one dtype. `bucket_bytes` 0 gives every tensor its own; those that stand
    `apart` have one in any case, whole, and others go on filling theirs. Buckets are in the order in which backward
    completes their last pieces; in each of them pieces whose size would shift others off ALIGNED places come last.
    """
    parameters, place = {p.name: p for p in graph.parameters}, {n: i for i, n in enumerate(completion(graph))}
    wire = one_bucket(graph, wire)
    urgent = _first_urgent(graph, wire)
    single: list[list[tuple[Piece, int, str]]] = []
    shared: list[list[tuple[Piece, int, str]]] = []
    for name in place:
        parameter = parameters[name]
        whole, found = name in apart or not graph.optimizer.elementwise, single if name in apart else shared
        for piece in slices(parameter, 0 if whole else wire.slice_bytes):
            limit = wire.first_bucket_bytes or wire.bucket_bytes if len(found) == 1 else wire.bucket_bytes
            held = sum(elements * ITEMSIZE[dtype] for _, elements, dtype in found[-1]) if found else 0
            other = found and found[-1][-1][2] != parameter.tensor.dtype
            if not found or found is single or held >= min(limit, wire.bucket_bytes) or other or name == urgent:
                found.append([])
            found[-1].append((piece, _elements(parameter, piece), parameter.tensor.dtype))
    in_order = sorted([*single, *shared], key=lambda pieces: place[pieces[-1][0].parameter])
    return tuple(
        Bucket(f"b{i}", pieces[0][2], sum(elements for _, elements, _ in pieces), _aligned(pieces))
        for i, pieces in enumerate(in_order)
    )


def _aligned(pieces: list[tuple[Piece, int, str]]) -> tuple[Piece, ...]:
    """Pieces in order, those of odd sizes last; slices stay next to their neighbours in other buckets."""
    if all(piece.stop < 0 for piece, _, _ in pieces):
        pieces = sorted(pieces, key=lambda one: one[1] % ALIGNED != 0)
    return tuple(piece for piece, _, _ in pieces)


def _first_urgent(graph: Graph, wire: Wire) -> str:
    """With order 'priority' the parameter from which on, in the order of completion, at most an eighth of all bytes is
    left ("": none, nor where all fit one bucket: there is nothing to overtake)."""
    sizes = {p.name: p.tensor.size() for p in graph.parameters}
    left = total = sum(sizes[name] for name in completion(graph))
    if wire.order is not Priority.PRIORITY or total <= wire.bucket_bytes:
        return ""
    for name in completion(graph):
        if left <= URGENT * total:
            return name
        left -= sizes[name]
    return ""


def urgent_from(graph: Graph, buckets: tuple[Bucket, ...], wire: Wire) -> int:
    """The first of the buckets that overtake others: those of the last eighth of bytes that backward completes."""
    first = _first_urgent(graph, one_bucket(graph, wire))
    starts = (i for i, bucket in enumerate(buckets) if any(piece.parameter == first for piece in bucket.pieces))
    return next(starts, len(buckets))


def slices(parameter: Parameter, limit: Bytes) -> Iterator[Piece]:
    """A parameter whole, or in runs of rows of about `limit` bytes each (0: whole)."""
    size, rows = parameter.tensor.size(), int(parameter.tensor.elements() and _rows(parameter))
    parts = min(rows, -(-size // limit)) if limit else 1
    if parts <= 1:
        yield Piece(parameter.name)
        return
    edges = even(rows, parts)
    for i in range(parts):
        yield Piece(parameter.name, edges[i], edges[i + 1], last=i == parts - 1)


def _rows(parameter: Parameter) -> int:
    shape = parameter.tensor.shape_at()
    return shape[0] if shape else 1


def _elements(parameter: Parameter, piece: Piece) -> int:
    whole = parameter.tensor.elements()
    return whole if piece.stop < 0 else whole // _rows(parameter) * (piece.stop - piece.start)


def shapes_of(graph: Graph, bucket: Bucket) -> list[tuple[int, ...]]:
    """The shapes of a bucket's pieces."""
    shapes = {p.name: p.tensor.shape_at() for p in graph.parameters}
    return [
        shapes[piece.parameter] if piece.stop < 0 else (piece.stop - piece.start, *shapes[piece.parameter][1:])
        for piece in bucket.pieces
    ]


def bucket_ends(graph: Graph, buckets: tuple[Bucket, ...]) -> tuple[int, ...]:
    """For each bucket the place in the graph's order at which all its gradients are there; the last one is the end."""
    at = completion(graph)
    edges = list(accumulate((max(at[piece.parameter] for piece in b.pieces) for b in buckets), max))
    return (*edges[:-1], len(graph.operators))


def readers_of(graph: Graph, buckets: tuple[Bucket, ...]) -> tuple[int, ...]:
    """For each bucket the place of the first forward operator that reads any of it; forward's end if none does."""
    first: dict[str, int] = {}
    for i, operator in enumerate(graph.operators[: graph.forward_length]):
        for ref in operator.reads():
            first.setdefault(ref.name, i)
    end = graph.forward_length
    return tuple(min(first.get(piece.parameter, end) for piece in bucket.pieces) for bucket in buckets)
