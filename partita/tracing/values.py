"""What tensors hold that are made of plain numbers: of large ones, such as masks, without making them.

    arange(s) <= arange(s)[:, None]      rows 0 to 63, columns 64 to 127      ->      False, for no 64 is <= a 63

A box is made of boxes of what its operator reads. Bounds of a box follow from bounds of these alone, where an operator
rises or falls with each value that it reads; so a mask with few edges is known from few boxes, however long it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, Final, NoReturn

import torch
from torch import Tensor

from partita.errors import CaptureError
from partita.tracing.bounds import Bounds, elementwise, hull, unknown
from partita.tracing.boxes import Box, Value, all_of, sizes_of, taken, within
from partita.tracing.large import Large

SMALL: Final = 2**20  # elements of what is made whole, and kept
WHOLE: Final = 2**24  # elements of what is made whole because nothing says of what a part of it is made
TILE: Final = 2**15  # elements of a box that is made; of more, torch would have several threads make it
WORK: Final = 2**29  # elements of all that is made for one answer, which takes seconds: of masks as decoders make
# them, one of 131,072 places is looked at, one of 262,144 is not
JOINS: Final = {torch.ops.aten.all.default: True, torch.ops.aten.any.default: False}


class TooLarge(CaptureError):
    """Raised for what would take too much memory or time to be known."""


def made(function: Any, arguments: Sequence[Any], keywords: dict[str, Any], like: Any) -> Any:
    """What a call returns: tensors; or a Large one, if it is one large tensor of the shape and dtype of `like`.

    Arguments may be Large ones. Raises TooLarge.
    """
    shape = tuple(like.shape) if isinstance(like, Tensor) else ()
    value = Large(function, tuple(arguments), keywords, shape, like.dtype if isinstance(like, Tensor) else torch.bool)
    small = prod(shape) <= SMALL
    if small and all(isinstance(one, Tensor) for one in value.inputs):
        return value.called([one for one in value.inputs if isinstance(one, Tensor)])
    if isinstance(like, Tensor) and taken(value, all_of(value)):
        return whole(value) if small else value
    if function in JOINS and value.inputs[0].dtype is torch.bool:
        return torch.tensor(_joined(value.inputs[0], every=JOINS[function]))
    if prod(shape) > WHOLE:
        _refuse(shape)
    return value.called([whole(one) for one in value.inputs])


def whole(value: Value) -> Tensor:
    """All of a value, made. Raises TooLarge."""
    if prod(value.shape) > WHOLE:
        _refuse(value.shape)
    return Boxes(value).part(value, all_of(value))


def _refuse(shape: Sequence[int]) -> NoReturn:
    raise TooLarge(f"a tensor of {' x '.join(map(str, shape))} elements is too large to be looked at")


def _joined(value: Value, *, every: bool) -> bool:
    """Whether a mask is True everywhere, or anywhere."""
    boxes = Boxes(value)
    for box, low, high in boxes:
        if every and not bool(high.all()):
            return False
        if not every and bool(low.any()):
            return True
        if not bool(low.all() if every else ~high.any()):
            boxes.split(box)
    return every


@dataclass
class Boxes:
    """Boxes that a value is made up of, the whole first, each with two tensors that broadcast to it: in no place does
    it hold less than the first, or more than the second. Where a box is small, both are what it holds.

    Of a larger one that says too little, the halves are looked at once it is `split`. Raises TooLarge.
    """

    value: Value
    waiting: list[Box] = field(default_factory=list)
    left: int = 0
    parts: dict[tuple[Large, Box], Tensor] = field(default_factory=dict)
    bounds: dict[tuple[Large, Box], Bounds | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.left = WORK

    def __iter__(self) -> Iterator[tuple[Box, Tensor, Tensor]]:
        self.waiting = [all_of(self.value)]
        while self.waiting:
            box = self.waiting.pop()
            self.parts.clear()
            self.bounds.clear()
            if prod(sizes_of(box)) <= TILE:
                piece = self.part(self.value, box)
                yield box, piece, piece
            elif found := self.bound(self.value, box):
                yield box, *found
            else:
                self.split(box)

    def split(self, box: Box) -> None:
        """Has the halves of a box looked at."""
        sizes = sizes_of(box)
        dim = sizes.index(max(sizes))
        first, last = box[dim]
        middle = (first + last) // 2
        self.waiting += [(*box[:dim], half, *box[dim + 1 :]) for half in ((first, middle), (middle, last))]

    def part(self, value: Value, box: Box) -> Tensor:
        """What a box of a value holds."""
        if isinstance(value, Tensor):
            return within(value, box)
        if (value, box) not in self.parts:
            found, size = taken(value, box), prod(sizes_of(box))
            self.left -= size
            if not found or size > WHOLE or self.left < 0:
                _refuse(value.shape)
            self.parts[value, box] = found.make([self.part(*each) for each in found.parts])
        return self.parts[value, box]

    def bound(self, value: Value, box: Box) -> Bounds | None:
        """Between what all of a box lies, as tensors of one element; None where that is not known."""
        if isinstance(value, Tensor):
            piece = within(value, box)
            return hull([(piece.amin(), piece.amax())], len(box))
        if (value, box) not in self.bounds:
            self.bounds[value, box] = self._bound(value, box)
        return self.bounds[value, box]

    def _bound(self, value: Large, box: Box) -> Bounds | None:
        found = taken(value, box)
        given = [self.bound(*each) for each in found.parts] if found else []
        known = [each for each in given if each]
        if not known or len(known) != len(given):
            return unknown(value)
        if not found or not found.moves:
            return elementwise(value, known)
        ends = hull(known, len(box))  # of what is joined a part may be of another dtype
        return ends and (ends[0].to(value.dtype), ends[1].to(value.dtype))
