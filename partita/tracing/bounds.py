"""Between which two values all of a box lies, from the bounds of what it is made of.

x in 0 to 63, y in 64 to 127      ->      x + y in 64 to 190, x < y in True to True, x == y in False to False
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor

from partita.tracing.large import Large

Bounds: TypeAlias = tuple[Tensor, Tensor]  # of one element each, and of as many dimensions as the box

ORDERS: Final = frozenset(("le", "lt", "ge", "gt"))
CHOICES: Final = frozenset(("where", "masked_fill", "minimum", "maximum", "clone", "detach", "alias"))
SUMS: Final = frozenset(("add", "sub", "rsub", "neg", "mul"))
SAFE: Final = 2**30  # whole numbers below it neither overflow when two are added nor when two are multiplied


def hull(bounds: Sequence[Bounds], dims: int) -> Bounds | None:
    """The bounds of all that lies within any of these, for a box of so many dimensions; None where there is a NaN."""
    low = torch.cat([low.reshape(1) for low, _ in bounds]).amin().reshape((1,) * dims)
    high = torch.cat([high.reshape(1) for _, high in bounds]).amax().reshape((1,) * dims)
    return None if low.is_floating_point() and bool(low.isnan() | high.isnan()) else (low, high)


def unknown(value: Large) -> Bounds | None:
    """The bounds of what may hold anything; None where that includes a NaN, or has no bound worth the name."""
    if value.dtype is not torch.bool:
        return None
    return torch.tensor(False).expand((1,) * len(value.shape)), torch.tensor(True).expand((1,) * len(value.shape))


def elementwise(value: Large, given: Sequence[Bounds]) -> Bounds | None:
    """The bounds of what an operator makes, element by element, of what lies within these."""
    if value.kind in ("eq", "ne"):
        return _equal(value, given)
    return _ends(value, given) if _follows(value, given) else unknown(value)


def _equal(value: Large, given: Sequence[Bounds]) -> Bounds | None:
    """x == y as x <= y and x >= y, of which each rises or falls with x and with y."""
    overload = value.function._overloadname
    orders = [_ends(value, given, getattr(getattr(torch.ops.aten, kind), overload)) for kind in ("le", "ge")]
    if None in orders:
        return unknown(value)
    (low, high), (least, most) = (each for each in orders if each)
    found = low & least, high & most
    return found if value.kind == "eq" else (~found[1], ~found[0])


def _ends(value: Large, given: Sequence[Bounds], function: Any = None) -> Bounds | None:
    """What becomes of the ends; what lies between them becomes something between that, if the operator `_follows`."""
    corners = product(*((low,) if low.equal(high) else (low, high) for low, high in given))
    made = [value.called(corner, function) for corner in corners]
    return hull([(one, one) for one in made], len(value.shape))


def _follows(value: Large, given: Sequence[Bounds]) -> bool:
    """Whether an operator rises or falls with each value that it reads while the others stay, all within bounds."""
    dtypes = {low.dtype for low, _ in given}
    if dtypes == {torch.bool}:
        return True  # the ends are all that there is
    if value.kind == "_to_copy":
        return value.dtype.is_floating_point or dtypes == {value.dtype}
    if value.kind not in SUMS:
        return value.kind in ORDERS | CHOICES
    if value.keywords.get("alpha", 1) != 1:
        return False  # may be rounded otherwise in a row of many
    numbers = [float(one) for ends in given for one in ends]
    numbers += [one for one in value.arguments if isinstance(one, int | float)]
    if value.dtype.is_floating_point:
        return value.kind != "mul" or all(abs(one) < float("inf") for one in numbers)
    return value.dtype is torch.int64 and all(abs(one) < SAFE for one in numbers)
