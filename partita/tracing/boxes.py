"""Of which boxes of what it reads a box of a tensor is made, by operator.

slice(x, 1, 100, 200)      rows 0 to 9, columns 0 to 9      <-      x: rows 0 to 9, columns 100 to 109
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor

from partita.tracing.large import Large

Box: TypeAlias = tuple[tuple[int, int], ...]  # of each dimension the first place, and the first behind it
Value: TypeAlias = Tensor | Large


@dataclass(frozen=True)
class Taken:
    """`make` makes a box of these boxes. Where it `moves`, each element of the box is an element of one of them."""

    parts: tuple[tuple[Value, Box], ...]
    make: Callable[[Sequence[Tensor]], Tensor]
    moves: bool = True


def all_of(value: Value) -> Box:
    """The box that is the whole of it."""
    return tuple((0, size) for size in value.shape)


def sizes_of(box: Box) -> tuple[int, ...]:
    """Its shape."""
    return tuple(last - first for first, last in box)


def within(tensor: Tensor, box: Box) -> Tensor:
    """The box of a tensor that is there."""
    return tensor[tuple(slice(*each) for each in box)]


def taken(value: Large, box: Box) -> Taken | None:
    """Of what a box of a value is made; None where that is not known."""
    if value.kind in ELEMENTWISE or torch.Tag.pointwise in value.function.tags:
        return _elementwise(value, box)
    rule = RULES.get(value.kind)
    return rule(value, box) if rule and (rule is _fill or not value.keywords) else None


def _elementwise(value: Large, box: Box) -> Taken:
    parts = tuple((one, _spread(one, box)) for one in value.inputs)
    return Taken(parts, value.called, moves=False)


def _spread(value: Value, box: Box) -> Box:
    """The box that broadcasts to this one."""
    last = box[len(box) - len(value.shape) :]
    return tuple((0, 1) if size == 1 else each for size, each in zip(value.shape, last, strict=True))


def _expand(value: Large, box: Box) -> Taken:
    (one,) = value.inputs
    return Taken(((one, _spread(one, box)),), lambda pieces: pieces[0].expand(sizes_of(box)))


def _fill(value: Large, box: Box) -> Taken:
    """The same number everywhere: one is made."""
    sized = [() if isinstance(a, list | tuple | torch.Size) else a for a in value.arguments]
    given = [torch.zeros((), dtype=a.dtype) if isinstance(a, Tensor | Large) else a for a in sized]
    told = {name: each for name, each in value.keywords.items() if name != "memory_format"}
    number = value.function(*given, **told)
    return Taken(((number, ()),), lambda pieces: pieces[0].expand(sizes_of(box)))


def _slice(value: Large, box: Box) -> Taken:
    one = value.inputs[0]
    given: tuple[Any, ...] = (*value.arguments, *(None, 0, None, None, 1)[len(value.arguments) :])
    dim, start, end, step = given[1:]
    dim %= len(one.shape)
    start = slice(start, end).indices(one.shape[dim])[0]
    first, last = box[dim]
    reach = (start + first * step, start + (last - 1) * step + 1)
    every = tuple(slice(None, None, step if i == dim else 1) for i in range(len(box)))
    return Taken(((one, (*box[:dim], reach, *box[dim + 1 :])),), lambda pieces: pieces[0][every])


def _select(value: Large, box: Box) -> Taken:
    one, dim, place = value.arguments
    dim %= len(one.shape)
    place %= one.shape[dim]
    return Taken(((one, (*box[:dim], (place, place + 1), *box[dim:])),), lambda pieces: pieces[0].squeeze(dim))


def _permute(value: Large, box: Box) -> Taken:
    one, dims = value.inputs[0], list(range(len(box)))
    if value.kind == "permute":
        dims = [dim % len(box) for dim in value.arguments[1]]
    elif len(box) > 1:
        first, second = value.arguments[1:] or (0, 1)
        dims[first], dims[second] = dims[second], dims[first]
    inner = tuple(box[dims.index(dim)] for dim in range(len(box)))
    return Taken(((one, inner),), lambda pieces: pieces[0].permute(dims))


def _view(value: Large, box: Box) -> Taken | None:
    """The same elements in another shape. Dimensions that are joined, or taken apart, are read whole."""
    (one,) = value.inputs
    if one.dtype != value.dtype:
        return None
    inner: list[tuple[int, int]] = []
    outer: list[tuple[int, int]] = []
    cut: list[slice] = []
    for old, new in _groups(tuple(one.shape), value.shape):
        kept, asked = [one.shape[i] for i in old], [box[i] for i in new]
        wide = [i for i in new if value.shape[i] != 1]
        if len(wide) == 1 and sum(size != 1 for size in kept) == 1:
            inner += [(0, 1) if size == 1 else box[wide[0]] for size in kept]
            outer, cut = outer + asked, cut + [slice(None)] * len(new)
        else:
            inner += [(0, size) for size in kept]
            outer, cut = outer + [(0, value.shape[i]) for i in new], cut + [slice(*each) for each in asked]
    shape, part = sizes_of(tuple(outer)), tuple(cut)
    return Taken(((one, tuple(inner)),), lambda pieces: pieces[0].reshape(shape)[part])


def _groups(old: Sequence[int], new: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Dimensions of two shapes of the same elements, in as many groups as hold as many elements in both."""
    found: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(old) or j < len(new):
        left: list[int] = []
        right: list[int] = []
        one = other = 1
        while not left + right or one != other:
            if j >= len(new) or (one <= other and i < len(old)):
                left, one, i = [*left, i], one * old[i], i + 1
            else:
                right, other, j = [*right, j], other * new[j], j + 1
        found.append((left, right))
    return found


def _band(value: Large, box: Box) -> Taken:
    """tril or triu: zeros, the input, or both."""
    one, diagonal = (*value.arguments, 0)[:2]
    (top, bottom), (left, right) = box[-2:]
    lowest, highest = left - (bottom - 1), (right - 1) - top  # of column - row
    upper = value.kind == "triu"
    everything = lowest >= diagonal if upper else highest <= diagonal
    nothing = highest < diagonal if upper else lowest > diagonal
    zero = torch.zeros((), dtype=value.dtype)
    if nothing:
        return Taken(((zero, ()),), lambda pieces: pieces[0].expand(sizes_of(box)))
    if everything:
        return Taken(((one, box),), lambda pieces: pieces[0])
    band = torch.triu if upper else torch.tril
    return Taken(((one, box), (zero, ())), lambda pieces: band(pieces[0], diagonal + top - left))


def _cat(value: Large, box: Box) -> Taken:
    ones, dim = (*value.arguments, 0)[:2]
    dim %= len(box)
    parts, start = [], 0
    for one in ones:
        size = one.shape[dim]
        first, last = (min(max(place - start, 0), size) for place in box[dim])
        if last > first:
            parts.append((one, (*box[:dim], (first, last), *box[dim + 1 :])))
        start += size
    return Taken(tuple(parts), lambda pieces: torch.cat([piece.to(value.dtype) for piece in pieces], dim))


def _index(value: Large, box: Box) -> Taken | None:
    """Places that are looked up in all dimensions of a table."""
    table, *places = value.inputs
    if len(places) != len(table.shape) or any(place.dtype is torch.bool for place in places):
        return None
    parts = ((table, all_of(table)), *((place, _spread(place, box)) for place in places))
    return Taken(parts, value.called, moves=False)


ELEMENTWISE: Final = frozenset(("_to_copy", "masked_fill", "detach", "alias", "lift_fresh_copy"))  # not tagged so
RULES: Final[dict[str, Callable[[Large, Box], Taken | None]]] = {
    **dict.fromkeys(("full", "ones", "zeros", "full_like", "ones_like", "zeros_like"), _fill),
    **dict.fromkeys(("new_full", "new_ones", "new_zeros"), _fill),
    **dict.fromkeys(("view", "_unsafe_view", "reshape", "unsqueeze", "squeeze"), _view),
    **dict.fromkeys(("permute", "transpose", "t"), _permute),
    **dict.fromkeys(("tril", "triu"), _band),
    "expand": _expand,
    "slice": _slice,
    "select": _select,
    "cat": _cat,
    "index": _index,
}
