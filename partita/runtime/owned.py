"""The part of a bucket that a rank owns if state is sharded, and memory that is released between uses.

    whole   [ fc2.weight        | fc2.bias | fc1.weight        ]      kept, or allocated from a gather to a Free
    owned             [ ........| ........ | .. ]                     kept; a view of the whole if that is kept
    slices             fc2.w 8:24  fc2.b     fc1.w 0:4                what the optimizer updates

A slice has as many dimensions as its parameter, since a rule may treat vectors differently from matrices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import torch

from partita.program.layout import Bucket, Piece
from partita.program.space import Space

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Slice:
    """Elements `start` to `stop` of a parameter, in the order of its memory."""

    parameter: str
    start: int
    stop: int


Part = Piece | Slice


@dataclass
class Owned:
    """Elements `start` to `stop` of a bucket: their `parameter` and `gradient` tensors (one for each slot), the
    `parts` of parameters that they are (pieces, if whole ones are owned), and `views` in the shapes of the parts."""

    start: int
    stop: int
    parts: tuple[Part, ...]
    parameter: torch.Tensor
    gradient: list[torch.Tensor]
    views: list[torch.Tensor]


def owned_of(
    bucket: Bucket, rank: int, shapes: Shapes, whole: torch.Tensor, gradients: list[torch.Tensor]
) -> Owned | None:
    """The part of a bucket that `rank` owns, as a view of the whole if that is kept; None if the bucket is not
    divided."""
    if bucket.shares is None:
        return None
    start, stop = bucket.shares.of(rank)
    keeps = bucket.shares.whole
    parameter = whole[start:stop] if Space.PARAMETER in keeps else whole.new_zeros(stop - start)
    gradient = [g[start:stop] if Space.GRADIENT in keeps else g.new_zeros(stop - start) for g in gradients]
    parts, sizes = [], []
    for part, shape in parts_of(bucket, shapes, start, stop):
        parts.append(part)
        sizes.append(shape)
    return Owned(start, stop, tuple(parts), parameter, gradient, _shaped(parameter, sizes))


def parts_of(bucket: Bucket, shapes: Shapes, start: int, stop: int) -> list[tuple[Part, tuple[int, ...]]]:
    """The (parts, shapes) of elements `start` to `stop` of a bucket, in order."""
    found: list[tuple[Part, tuple[int, ...]]] = []
    at = 0
    for piece in bucket.pieces:
        shape = shapes[piece.parameter]
        rows = shape if piece.stop < 0 else (piece.stop - piece.start, *shape[1:])
        size = prod(rows)
        low, high = max(start - at, 0), min(stop - at, size)
        if (low, high) == (0, size):
            found.append((piece, rows))
        elif low < high:
            first = piece.start * prod(shape[1:])
            sliced = (high - low, *(1 for _ in shape[1:]))
            found.append((Slice(piece.parameter, first + low, first + high), sliced))
        at += size
    return found


def _shaped(flat: torch.Tensor, shapes: list[tuple[int, ...]]) -> list[torch.Tensor]:
    parts = torch.split(flat, [prod(shape) for shape in shapes]) if shapes else []
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]


def is_allocated(tensor: torch.Tensor) -> bool:
    """Whether a tensor has its memory now."""
    return tensor.untyped_storage().size() > 0 or not tensor.numel()


def allocate(tensor: torch.Tensor) -> torch.Tensor:
    """Allocate the memory of a released tensor, the only one of its storage; its content is undefined. Views of it
    are valid again."""
    tensor.untyped_storage().resize_(tensor.numel() * tensor.element_size())
    return tensor


def release(tensor: torch.Tensor) -> None:
    """Release the memory of a tensor, and so of all views of it, until `allocate`."""
    tensor.untyped_storage().resize_(0)
