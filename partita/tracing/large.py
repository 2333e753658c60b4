"""A tensor that is too large to be made, as the call that would make it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten


@dataclass(frozen=True, eq=False)
class Large:
    """`function` is called with `arguments` and `keywords`, which hold tensors and other Large ones."""

    function: Any
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    shape: tuple[int, ...]
    dtype: torch.dtype

    @cached_property
    def kind(self) -> str:
        """The operator's name without `aten` and overload."""
        return str(self.function.overloadpacket.__name__)

    @cached_property
    def inputs(self) -> tuple[Tensor | Large, ...]:
        """What the call reads, in order."""
        return tuple(leaf for leaf in self._flat[0] if isinstance(leaf, Tensor | Large))

    @cached_property
    def _flat(self) -> tuple[list[Any], Any]:
        return tree_flatten((self.arguments, self.keywords))

    def called(self, inputs: Sequence[Tensor], function: Any = None) -> Any:
        """What the call makes of other inputs; `function` may take the place of its own."""
        leaves, others = self._flat[0], iter(inputs)
        given = [next(others) if isinstance(leaf, Tensor | Large) else leaf for leaf in leaves]
        arguments, keywords = tree_unflatten(given, self._flat[1])
        return (function or self.function)(*arguments, **keywords)
