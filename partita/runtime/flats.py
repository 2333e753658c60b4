"""The flat tensors of a rank's buckets, and the pieces of parameters that lie in them.

one memory   | fc2.weight | fc2.bias | fc1.weight rows 0..256 | rows 256..512 | fc1.bias |   |
bucket       |--------------------- b0 -----------------------|---------- b1 ------------|   |-- b2: an aligned place
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import prod

import torch

from partita.lowering.layout import ALIGNED
from partita.program.layout import Bucket
from partita.program.space import Space
from partita.runtime.owned import Shapes, release
from partita.tracing.convert import dense

Views = list[torch.Tensor]


@dataclass(frozen=True, slots=True)
class Flats:
    """Of each bucket the flat tensor of its weights (`parameter`), one for the gradient of each slot, and their pieces
    in the shapes of parameters."""

    parameter: dict[str, torch.Tensor]
    pieces: dict[str, Views]
    gradient: dict[str, list[torch.Tensor]]
    gradient_pieces: dict[str, list[Views]]


def flats_of(buckets: Sequence[Bucket], packed: Collection[str], slots: int, shapes: Shapes, device: str) -> Flats:
    """Zeros for all buckets, gradients for those that are `packed`; what a bucket does not keep has no memory yet."""
    parameter = _flats(tuple(b for b in buckets if b.keeps(Space.PARAMETER)), device)
    pieces = {b.name: _views(parameter[b.name], b, shapes) for b in buckets if b.name in parameter}
    gradient: dict[str, list[torch.Tensor]] = {}
    gradient_pieces: dict[str, list[Views]] = {}
    for b in buckets:
        if b.name not in parameter:
            parameter[b.name], pieces[b.name] = _absent(b, shapes, device, b.dtype)
        for _ in range(slots if b.name in packed else 0):
            flat, parts = (_zeros if b.keeps(Space.GRADIENT) else _absent)(b, shapes, device)
            gradient.setdefault(b.name, []).append(flat)
            gradient_pieces.setdefault(b.name, []).append(parts)
    return Flats(parameter, pieces, gradient, gradient_pieces)


def wholes_of(buckets: Sequence[Bucket], shapes: Shapes, views: dict[str, Views]) -> dict[str, torch.Tensor]:
    """Parameter name -> the whole parameter, over the adjacent pieces that its buckets hold."""
    found: dict[str, torch.Tensor] = {}
    for bucket in buckets:
        for piece, view in zip(bucket.pieces, views[bucket.name], strict=True):
            if piece.start == 0:
                shape = shapes[piece.parameter]
                found[piece.parameter] = view if piece.stop < 0 else view.as_strided(shape, dense(shape))
    return found


def _flats(held: tuple[Bucket, ...], device: str) -> dict[str, torch.Tensor]:
    """One flat tensor for each bucket, in one memory, at aligned places; adjacent where a parameter is cut into several
    buckets, so that it is whole as well."""
    found: dict[str, torch.Tensor] = {}
    for dtype in dict.fromkeys(b.dtype for b in held):
        buckets, places, end = [b for b in held if b.dtype == dtype], list[int](), 0
        for bucket in buckets:
            cut = any(piece.start > 0 for piece in bucket.pieces[:1])
            places.append(end if cut else end + -end % ALIGNED)
            end = places[-1] + bucket.elements
        whole = torch.zeros(end, dtype=getattr(torch, dtype), device=device)
        for bucket, place in zip(buckets, places, strict=True):
            found[bucket.name] = whole[place : place + bucket.elements]
    return found


def _zeros(bucket: Bucket, shapes: Shapes, device: str) -> tuple[torch.Tensor, Views]:
    flat = torch.zeros(bucket.elements, dtype=getattr(torch, bucket.sums or bucket.dtype), device=device)
    return flat, _views(flat, bucket, shapes)


def _absent(bucket: Bucket, shapes: Shapes, device: str, dtype: str = "") -> tuple[torch.Tensor, Views]:
    """A flat tensor of gradients (or of `dtype`) and its pieces, without memory until it is allocated."""
    flat = torch.empty(bucket.elements, dtype=getattr(torch, dtype or bucket.sums or bucket.dtype), device=device)
    views = _views(flat, bucket, shapes)
    release(flat)
    return flat, views


def _views(flat: torch.Tensor, bucket: Bucket, shapes: Shapes) -> Views:
    if not bucket.pieces:
        return [flat]
    found, at = [], 0
    for piece in bucket.pieces:
        shape = shapes[piece.parameter]
        if piece.stop >= 0:
            shape = (piece.stop - piece.start, *shape[1:])
        found.append(flat[at : at + prod(shape)].view(shape))
        at += prod(shape)
    return found
