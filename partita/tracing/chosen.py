"""Rows that a mask of samples' values chooses, of which a trace knows no number: all rows, and which of them count.

    x[mask]                     ->  Chosen(x, False where not mask): what does not count holds a plain number instead
    f(x[mask], y[mask])         ->  f of all rows, where it goes row by row
    x[mask].sum(), .mean()      ->  sums over what counts, divided by how many these are
    y[mask] = f(x[mask])        ->  torch.where(mask, f of all rows, y)
    F.linear(x[mask], w)        ->  of all rows, if that is little; much of it would make the model another one's cost

So the step stays one for all samples, made of operators that everything knows. Gradients of rows that do not count are
0, also where such a row's value, or its slope, is not finite: each way into a tensor with other rows or none goes
through a masked fill, whose gradient is 0 there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final, NoReturn, TypeAlias

import torch
from torch import Tensor

from partita.errors import CaptureError
from partita.tracing.numbers import Number

Key: TypeAlias = tuple[Any, ...]
ALL: Final = -1
FILL: Final = 0.5  # of floats: within the domains of logarithms, roots and inverse functions


class Count(Number):
    """How many rows a mask chooses, times some number: `of` (the mask's key, that number)."""

    def __init__(self, tensor: Tensor, of: tuple[Key, int]) -> None:
        super().__init__(tensor)
        self.of = of


class Chosen(Tensor):
    """The rows of `rows` (N, ...) at which `mask` (N) is true. Equal `key`s are equal masks; `places` says that rows
    hold the places of these, along one of the mask's dimensions or ALL. Whatever it cannot do raises CaptureError. To
    torch it is a tensor without elements."""

    @staticmethod
    def __new__(cls, rows: Tensor, mask: Tensor, key: Key, places: tuple[Key, int] | None = None) -> Chosen:
        made: Chosen = Tensor._make_wrapper_subclass(cls, (0,) * rows.dim(), dtype=rows.dtype, device=rows.device)
        return made

    def __init__(self, rows: Tensor, mask: Tensor, key: Key, places: tuple[Key, int] | None = None) -> None:
        self.rows, self.mask, self.key, self.places = rows, mask, key, places
        self.read = False

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        refuse(named(func))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        refuse(str(func))

    @property
    def shape(self) -> Any:  # type: ignore[override]
        """How many rows there are, which can be compared, and the other sizes."""
        return Count(self.mask.sum(), (self.key, 1)), *self.rows.shape[1:]

    @property
    def ndim(self) -> int:  # type: ignore[override]
        """The number of dimensions."""
        return self.rows.dim()

    @property
    def requires_grad(self) -> bool:  # type: ignore[override]
        """Whether gradients go into it."""
        return self.rows.requires_grad

    @property
    def dtype(self) -> torch.dtype:  # type: ignore[override]
        """That of the rows."""
        return self.rows.dtype

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """That of the rows."""
        return self.rows.device

    def dim(self) -> int:
        """The number of dimensions."""
        return self.rows.dim()

    def size(self, dim: int | None = None) -> Any:
        """As `shape`."""
        return self.shape if dim is None else self.shape[dim]

    def numel(self) -> Any:
        """How many elements there are."""
        each = math.prod(self.rows.shape[1:])
        return Count(self.mask.sum() * each, (self.key, each))

    def __len__(self) -> NoReturn:
        refuse("len()")

    def __iter__(self) -> NoReturn:
        refuse("a loop over them")

    def __bool__(self) -> NoReturn:
        refuse("a condition")

    def __setitem__(self, index: Any, value: Any) -> NoReturn:
        refuse("an assignment to some of them")

    def column(self, place: int) -> tuple[Key, int] | None:
        """Which places a column holds of rows that hold them all."""
        return (self.key, place) if self.places == (self.key, ALL) else self.places

    def like(self, rows: Tensor) -> Chosen:
        """Other rows at the same places."""
        return Chosen(rows, self.mask, self.key)

    def filled(self, value: float | bool | None = None) -> Tensor:
        """All rows, those that do not count as plain numbers."""
        return filled(self.rows, self.mask, value)


def _in_place(name: str) -> Callable[..., Any]:
    def operated(self: Chosen, other: Any) -> Chosen:
        """x[mask] += y, which nothing else has seen in between."""
        if self.read:
            refuse("an operation in place")
        made: Any = getattr(Tensor, f"__{name}__")(self, other)
        self.rows, self.read = made.rows.to(self.rows.dtype), False
        return self

    return operated


for each in ("add", "sub", "mul", "truediv"):
    setattr(Chosen, f"__i{each}__", _in_place(each))


def named(func: Any) -> str:
    """What a function of torch is called; what gets a property is a method of it."""
    return str(func.__self__.__name__ if func.__name__ == "__get__" else func.__name__)


def refusal(name: str) -> CaptureError:
    """What is said of what is not done to rows that a mask chooses."""
    return CaptureError(
        f"rows that a mask chooses, whose number follows the samples, go into {name}; apply it to all rows, and choose "
        "from what it makes, to have it traced"
    )


def refuse(name: str) -> NoReturn:
    """Raise `refusal`."""
    raise refusal(name)


def filled(rows: Tensor, mask: Tensor, value: float | bool | None = None) -> Tensor:
    """(N, ...), with a number (FILL, or 0 of integers) where (N) is false."""
    if rows.is_complex():
        refuse("complex numbers")
    value = (FILL if rows.is_floating_point() else 0) if value is None else value
    return rows.masked_fill(~mask.reshape(-1, *[1] * (rows.dim() - 1)), value)


def chosen(x: Tensor, mask: Tensor, key: Key) -> Chosen:
    """x[mask], of a mask over the first dimensions."""
    if not mask.dim() or x.shape[: mask.dim()] != mask.shape:
        refuse("an index of another shape")
    flat = mask.reshape(-1).clone()  # which stays as it is where the mask is changed in place
    return Chosen(filled(x.reshape(-1, *x.shape[mask.dim() :]), flat), flat, key)


def is_chosen(value: Any) -> bool:
    """Whether it is one, which says of itself that it is a Tensor."""
    return type(value) is Chosen
