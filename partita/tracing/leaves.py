"""Leaves of a batch that are objects of a class that pytree does not know, with tensors inside (a graph, say)."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from types import FunctionType, ModuleType
from typing import Any, Final

import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

Change = Callable[[torch.Tensor], torch.Tensor]
DEEP: Final = 3  # objects inside of objects that are looked into: a graph's store of a graph
OTHERS: Final = (type, ModuleType, FunctionType, torch.nn.Module)


def changed(leaf: Any, change: Change, deep: int = DEEP) -> Any:
    """A leaf with `change` done to it if it is a tensor, or, in a copy, to the tensors among its attributes; the leaf
    itself where that changes nothing."""
    if isinstance(leaf, torch.Tensor):
        return change(leaf)
    if not _holds_tensors(leaf, deep):
        return leaf
    found, made = {}, copy(leaf)  # what is copied with it, such as a store that knows its owner, is the copy's
    for name, value in vars(made).items():
        inner, spec = tree_flatten(value)
        others = [changed(one, change, deep - 1) for one in inner]
        if any(other is not one for other, one in zip(others, inner, strict=True)):
            found[name] = tree_unflatten(others, spec)
    vars(made).update(found)
    return made if found else leaf


def _holds_tensors(leaf: Any, deep: int) -> bool:
    """Whether a tensor is among the attributes of an object, or of those that are so deep in it."""
    if not deep or not getattr(leaf, "__dict__", None) or isinstance(leaf, OTHERS):
        return False
    inner = tree_leaves(vars(leaf))
    return any(isinstance(one, torch.Tensor) or _holds_tensors(one, deep - 1) for one in inner)
