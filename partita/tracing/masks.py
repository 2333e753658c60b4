"""Masks of samples' values as indices: which calls make a `Chosen`, and which take one.

    x[mask], x.masked_select(mask)      ->  Chosen
    where(mask), mask.nonzero()         ->  Chosen places, which as an index are the mask
    x[mask] = rows of the same mask     ->  x.copy_(torch.where(mask, all rows, x))

Layers of chosen rows are layers of all rows, if they are a small part of the model's products.
Two masks are equal where they are made of the same tensors by the same calls: `p[y > 0]` and `y[y > 0]`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import flop_registry

from partita.tracing.by_rows import computed, given_rows
from partita.tracing.calls import AtenCall
from partita.tracing.chosen import ALL, Chosen, Key, chosen, filled, is_chosen, refuse
from partita.tracing.record import Recorder, plain

GET: Final = Tensor.__getitem__
SET: Final = Tensor.__setitem__
SELECT: Final = (Tensor.masked_select, torch.masked_select)
WHERE: Final = (Tensor.where, torch.where)
PLACES: Final = (Tensor.nonzero, torch.nonzero, Tensor.argwhere, torch.argwhere)
MUCH: Final = 1 / 8
DEPTH: Final = 12  # calls behind a mask that are looked at
TAKE: Final = (Tensor.index_select, torch.index_select)


class Masks(TorchFunctionMode):
    """Inside, a mask whose values are not known chooses rows of all; `calls` are those of the recorder."""

    def __init__(self, fake: Recorder) -> None:
        super().__init__()
        self.calls, self.made = fake.calls, dict[int, int]()
        self.products = 0.0
        self.looked, self.kept = 0, list[Tensor]()  # kept, so that no other has its id

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is GET and not is_chosen(args[0]):
            made = self._taken(args[0], args[1])
            return func(*args) if made is None else made
        if func is GET and _is_mask(args[1]):
            return self._again(*args)
        if func is SET and is_chosen(args[2]) and not is_chosen(args[0]):
            return self._set(*args)
        if func is SET and _is_row(*args):
            mask = args[1].reshape(*args[1].shape, *[1] * (args[0].dim() - args[1].dim()))
            return _assign(args[0], torch.where(mask, args[2].to(args[0].dtype), args[0]))
        if func in SELECT and not is_chosen(args[0]) and _is_mask(args[1]) and not is_chosen(args[1]):
            x, mask = torch.broadcast_tensors(*args)  # type: ignore[no-untyped-call]
            return self._chosen(x, mask, (x.shape, self.key(args[1])))
        if func in WHERE and len(args) == 1 and not kwargs and not is_chosen(args[0]):
            return self._places(args[0])
        if func in PLACES and not is_chosen(args[0]):
            places = self._places(args[0])
            return places if kwargs.get("as_tuple") else _columns(places)
        if func in TAKE and args[1] == 0 and is_chosen(args[2]):
            return self._taken(args[0], args[2])
        if not given_rows(args, kwargs):
            return func(*args, **kwargs)
        before = len(self.calls)
        made = computed(func, args, kwargs)
        if func is functional.linear:
            self.products += products_of(self.calls[before:])
        return made

    def check_products(self) -> None:
        """Raises CaptureError where layers of chosen rows are much of a forward pass: of all rows they are more."""
        if self.products > MUCH * products_of(self.calls):
            refuse("a layer that is much of the model")

    def _taken(self, x: Tensor, index: Any) -> Chosen | None:
        """x[index]; None where no mask, nor what one chooses, is in the index."""
        parts = index if isinstance(index, tuple) else (index,)
        if not any(is_chosen(part) or _is_mask(part) for part in parts):
            return None
        while parts and type(parts[0]) is int:
            x, parts = x[parts[0]], parts[1:]
        if _is_mask(parts[0]):
            made, used = self._chosen(x, parts[0], self.key(parts[0])), 1
        else:
            made, used = self._at(x, parts)
        rest = parts[used:]
        return computed(GET, (made, (slice(None), *rest)), {}) if rest else made

    def _chosen(self, x: Tensor, mask: Any, key: Key) -> Chosen:
        if is_chosen(mask):
            refuse("an index of another tensor")
        return chosen(x, mask, (*key, tuple(mask.shape)))

    def _at(self, x: Tensor, parts: tuple[Any, ...]) -> tuple[Chosen, int]:
        """x at places: those of a mask, or numbers that each chosen row holds; and how many parts of the index it
        took."""
        first = parts[0]
        if not is_chosen(first) or first.dtype is not torch.int64:
            refuse("an index beside others")
        first.read = True
        if _are_places(x, parts):
            shape = first.key[-1]
            return chosen(x, first.mask.reshape(shape), first.key), len(shape)
        if any(map(is_chosen, parts[1:])):
            refuse("an index of several dimensions")
        rows = x[first.filled()]
        return first.like(filled(rows, first.mask) if x.requires_grad else rows), 1

    def _again(self, given: Chosen, mask: Any) -> Chosen:
        """x[mask][other of the same rows]."""
        if not is_chosen(mask) or mask.dim() != 1 or mask.key != given.key:
            refuse("another mask")
        given.read = mask.read = True
        both = given.mask & mask.rows
        return Chosen(filled(given.rows, both), both, ("and", given.key, self.key(mask.rows)))

    def _set(self, x: Tensor, index: Any, value: Chosen) -> None:
        parts = index if isinstance(index, tuple) else (index,)
        own = _are_places(x, parts) or (len(parts) == 1 and _is_mask(parts[0]))
        at = self._taken(x.detach(), index) if own else None
        if at is None or at.key != value.key or at.dim() != value.dim():
            refuse("an assignment to rows of another mask")
        value.read = True
        mask = value.mask.reshape(-1, *[1] * (at.dim() - 1))
        rows = torch.where(mask, value.rows.to(x.dtype), x.reshape(at.rows.shape))
        _assign(x, rows.reshape(x.shape))

    def _places(self, mask: Tensor) -> tuple[Chosen, ...]:
        """The places at which a tensor is not 0, a dimension each."""
        mask = mask if mask.dtype is torch.bool else mask != 0
        if not mask.dim():
            refuse("the places of a single number")
        key, flat, made = (*self.key(mask), tuple(mask.shape)), mask.reshape(-1).clone(), []
        for dim, size in enumerate(mask.shape):
            grid = torch.arange(size, device=mask.device).reshape(-1, *[1] * (mask.dim() - dim - 1))
            made.append(Chosen(grid.expand(mask.shape).reshape(-1), flat, key, (key, dim)))
        return tuple(made)

    def key(self, tensor: Tensor) -> Key:
        """What is equal for tensors that are made of the same by the same calls."""
        for place in range(self.looked, len(self.calls)):
            self.made[id(self.calls[place].result)] = place
        self.looked = len(self.calls)
        return self._key(plain(tensor), 0)

    def _key(self, value: Any, depth: int) -> Key:
        if isinstance(value, list | tuple):
            return tuple(self._key(part, depth) for part in value)
        if not isinstance(value, Tensor):
            return type(value).__name__, str(value)
        place = self.made.get(id(value))
        if place is None or depth == DEPTH or torch.Tag.nondeterministic_seeded in self.calls[place].function.tags:
            self.kept.append(value)
            return ("tensor", id(value))
        call = self.calls[place]
        words = tuple((name, self._key(word, depth + 1)) for name, word in call.keywords.items())
        return str(call.function), self._key(call.arguments, depth + 1), words


def products_of(calls: Sequence[AtenCall]) -> float:
    """FLOPs of products, convolutions and attention."""
    formulas = ((flop_registry.get(call.function.overloadpacket), call) for call in calls)
    return float(sum(f(*call.arguments, **call.keywords, out_val=call.result) for f, call in formulas if f))


def _is_mask(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype is torch.bool


def _are_places(x: Tensor, parts: tuple[Any, ...]) -> bool:
    """Whether an index begins with all places of a mask over the first dimensions, which it stands for."""
    first: Any = parts[0] if parts else None
    if not is_chosen(first) or not first.places or x.shape[: len(first.key[-1])] != first.key[-1]:
        return False
    theirs = [part.places for part in parts[: len(first.key[-1])] if is_chosen(part)]
    return theirs == [(first.key, dim) for dim in range(len(first.key[-1]))]


def _is_row(x: Any, mask: Any, value: Any) -> bool:
    """Whether a mask over the first dimensions sets rows to one row, which the mask's number of rows does not matter
    to; torch's own gradient of that row asks for it."""
    if is_chosen(x) or is_chosen(mask) or not _is_mask(mask) or not isinstance(value, Tensor):
        return False
    return bool(mask.dim()) and x.shape[: mask.dim()] == mask.shape and value.dim() <= x.dim() - mask.dim()


def _assign(x: Tensor, rows: Tensor) -> None:
    x.copy_(rows)


def _columns(places: tuple[Chosen, ...]) -> Chosen:
    """A row for each place, as nonzero() has."""
    first = places[0]
    rows = torch.stack([place.rows for place in places], 1)
    return Chosen(rows, first.mask, first.key, (first.key, ALL))
