"""A module that is trained beside the one of which it is a copy.

    m = self.mlp
    self.mlpf = lambda x: m.c_proj(m.act(m.c_fc(x)))     # minGPT's forward calls it

`deepcopy` takes a function as it is, and with it the layers of the first module, with which the copy would compute.
"""

from __future__ import annotations

from copy import deepcopy
from types import CellType, FunctionType, MethodType
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves


def copied(model: nn.Module) -> nn.Module:
    """A copy of a module, whose functions call the copy's layers; of values that it keeps from its last pass, which
    torch does not copy, what they hold."""
    held = [value for module in model.modules() for value in tree_leaves(vars(module))]
    memo: dict[int, Any] = {
        id(value): value.detach().clone() for value in held if torch.is_tensor(value) and not value.is_leaf
    }
    twins = _twins(held)
    memo.update({id(function): twin for function, twin in twins})
    made = deepcopy(model, memo)
    for function, twin in twins:
        for cell, new in zip(function.__closure__ or (), twin.__closure__ or (), strict=True):
            if cell != CellType():
                new.cell_contents = _own(cell.cell_contents, memo)
        twin.__defaults__ = function.__defaults__ and tuple(_own(value, memo) for value in function.__defaults__)
        twin.__kwdefaults__ = function.__kwdefaults__ and {k: _own(v, memo) for k, v in function.__kwdefaults__.items()}
    return made


def _twins(held: list[Any]) -> list[tuple[FunctionType, FunctionType]]:
    """The functions among values, and those that they call, each with another of the same code that holds nothing."""
    found: dict[int, tuple[FunctionType, FunctionType]] = {}
    left = list(held)
    while left:
        one = left.pop()
        if not isinstance(one, FunctionType) or id(one) in found:
            continue
        cells = tuple(CellType() for _ in one.__closure__ or ())
        twin = FunctionType(one.__code__, one.__globals__, one.__name__, None, cells)
        twin.__dict__.update(one.__dict__)
        found[id(one)] = one, twin
        inner = [cell.cell_contents for cell in one.__closure__ or () if cell != CellType()]
        left += tree_leaves([inner, one.__defaults__, one.__kwdefaults__])
    return list(found.values())


def _own(value: Any, memo: dict[int, Any]) -> Any:
    """What a function of the copy holds in place of a value: the copy's part, where the value is one of the model's."""
    parts = [part.__self__ if isinstance(part, MethodType) else part for part in tree_leaves([value])]
    return deepcopy(value, memo) if any(id(part) in memo for part in [value, *parts]) else value
