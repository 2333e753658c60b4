"""A module that is trained beside the one of which it is a copy.

    m = self.mlp
    self.mlpf = lambda x: m.c_proj(m.act(m.c_fc(x)))     # minGPT's forward calls it

`deepcopy` takes a function as it is, and with it the layers of the first module, with which the copy would compute.

Of a fake tensor it copies the mode as well, with weak references to storages that are released once more by each copy:
a model that copied a part of itself while it was built, as a student makes its teacher, aborted the process.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from types import CellType, FunctionType, MethodType
from typing import Any, Final

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves

DEEPCOPY: Final = "__deepcopy__"


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


@contextmanager
def fakes_cloned() -> Iterator[None]:
    """A context in which the deep copy of a fake tensor is a clone of it, in the same mode."""
    before = getattr(FakeTensor, DEEPCOPY)
    setattr(FakeTensor, DEEPCOPY, _clone)
    try:
        yield
    finally:
        setattr(FakeTensor, DEEPCOPY, before)


def _clone(fake: FakeTensor, memo: dict[int, Any]) -> Any:
    """What is set on a tensor is copied with it, and not what is set on a parameter, as torch has it."""
    if id(fake) in memo:
        return memo[id(fake)]
    with torch.no_grad():
        made = fake.clone()
    if isinstance(fake, nn.Parameter):
        memo[id(fake)] = nn.Parameter(made, fake.requires_grad)
    else:
        memo[id(fake)] = made.requires_grad_(fake.requires_grad)
        vars(made).update({name: deepcopy(value, memo) for name, value in vars(fake).items() if name not in vars(made)})
    return memo[id(fake)]


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
