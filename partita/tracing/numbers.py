"""Numbers that samples have, of which a trace knows none: compared as the tensors that they are of.

if labels.max().item() >= classes: raise ...     ->      if (labels.max() >= classes): raise ...    (`conditions`)
scale = 1 / x.norm().item()                      ->      no step for all samples
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.overrides import TorchFunctionMode

COMPARISONS: Final = ("lt", "le", "gt", "ge", "eq", "ne")
OTHERWISE: Final = (  # what needs to know a number
    *("__float__", "__int__", "__index__", "__complex__", "__hash__", "__str__", "__repr__", "__format__", "__round__"),
    *(f"__{name}__" for name in ("neg", "pos", "abs", "trunc", "floor", "ceil", "divmod", "rdivmod")),
    *(f"__{side}{name}__" for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow") for side in ("", "r")),
)


class Numbers(TorchFunctionMode):
    """Inside, `tensor.item()` of what is not known is a Number."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        try:
            return func(*args, **(kwargs or {}))
        except DataDependentOutputException:
            if func is not Tensor.item or args[0].dtype is torch.bool or args[0].is_complex():
                raise
            return Number(args[0])


class Number:
    """The number that a tensor has, which can be compared; whatever else is asked of it raises
    DataDependentOutputException, or is asked of 0 where the tensor is taken to hold that."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor.detach().clone()  # which may be changed in place later on

    def __bool__(self) -> bool:
        return bool(self.tensor != 0)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.value(), name)

    def value(self) -> int | float:
        """The number, where it is taken to be 0. Raises DataDependentOutputException elsewhere."""
        return float(self.tensor) if self.tensor.is_floating_point() else int(self.tensor)


def _compared(compare: Callable[[Any, Any], Any]) -> Callable[[Number, Any], Any]:
    """A comparison as Python makes it, in double precision."""

    def compared(self: Number, other: Any) -> Any:
        if not isinstance(other, int | float | Number):
            return NotImplemented
        known = other.tensor.double() if isinstance(other, Number) else other
        whole = isinstance(other, int) and not self.tensor.is_floating_point()
        return bool(compare(self.tensor if whole else self.tensor.double(), known))

    return compared


def _asked(name: str) -> Callable[..., Any]:
    return lambda self, *given: getattr(self.value(), name)(*given)


for each in COMPARISONS:
    setattr(Number, f"__{each}__", _compared(getattr(operator, each)))
for each in OTHERWISE:
    setattr(Number, each, _asked(each))
