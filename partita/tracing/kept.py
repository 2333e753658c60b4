"""What a model and a loss keep from step to step beside parameters and buffers: plain numbers, texts and tensors.

model   attributes of its modules
loss    variables of its closure and globals that it names, what it is bound to; within these, one level of dicts, lists
        and objects
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from types import FunctionType, MethodType, ModuleType
from typing import Any, Final

import torch
from torch import nn

from partita.task import Task
from partita.tracing.prepare import cast

PLAIN: Final = (int, float, str)
MOST: Final = 1000  # members of a dict or a list that are looked at
Put = Callable[[Any], None]


@dataclass(frozen=True)
class Place:
    """Where a value is kept: who keeps it, under which name, and how another is put there."""

    who: str
    name: str
    value: Any
    put: Put


def kept(task: Task, model: nn.Module | None = None) -> dict[tuple[str, str], Place]:
    """All places, by who keeps a value and its name; those of the loss alone without a model."""
    modules = () if model is None else model.named_modules()
    found = [place for name, module in modules for place in _of_module("model", name, module)]
    return {
        (place.who, place.name): place
        for place in (*found, *_of_loss(task.loss))
        if type(place.value) in PLAIN or isinstance(place.value, torch.Tensor)
    }


@contextmanager
def put_back(task: Task) -> Iterator[None]:
    """A context after which the loss keeps what it kept before."""
    before = kept(task)
    try:
        yield
    finally:
        for key, place in kept(task).items():
            if key in before and before[key].value is not place.value:
                place.put(before[key].value)


@contextmanager
def loss_in(task: Task, precision: str) -> Iterator[None]:
    """A context in which the modules that the loss keeps, such as a teacher, are copies in `precision`."""
    places = [place for place in _of_loss(task.loss) if isinstance(place.value, nn.Module)]
    copies = {id(place.value): place.value for place in places}
    copies = {number: cast(deepcopy(module), precision) for number, module in copies.items()}
    try:
        for place in places:
            place.put(copies[id(place.value)])
        yield
    finally:
        for place in places:
            place.put(place.value)


def own_values(task: Task, model: nn.Module) -> dict[tuple[str, str], Any]:
    """The values that are kept, tensors by identity."""
    return {
        key: place.value if type(place.value) in PLAIN else id(place.value) for key, place in kept(task, model).items()
    }


def _of_module(who: str, name: str, module: nn.Module) -> Iterator[Place]:
    own = {key: value for key, value in vars(module).items() if not key.startswith("_")}
    yield from _members(who, name, own, lambda key: partial(setattr, module, key))


def _members(who: str, name: str, own: Mapping[Any, Any], put: Callable[[Any], Put]) -> Iterator[Place]:
    for key, value in own.items():
        yield Place(who, ".".join(filter(None, (name, str(key)))), value, put(key))


def _of_loss(loss: Any) -> Iterator[Place]:
    while isinstance(loss, partial):
        for given in (*loss.args, *loss.keywords.values()):
            yield from _inside("", given)
        loss = loss.func
    if isinstance(loss, MethodType):
        yield from _inside("", loss.__self__)
        loss = loss.__func__
    elif not isinstance(loss, FunctionType):
        yield from _inside("", loss)
        loss = vars(type(loss)).get("__call__")
    if not isinstance(loss, FunctionType):
        return
    for name, cell in zip(loss.__code__.co_freevars, loss.__closure__ or (), strict=True):
        try:
            value = cell.cell_contents
        except ValueError:  # a variable that has no value yet
            continue
        yield Place("loss", name, value, partial(setattr, cell, "cell_contents"))
        yield from _inside(name, value)
    own = loss.__globals__
    named = {name: own[name] for name in loss.__code__.co_names if name in own}
    yield from _members("loss", "", named, lambda name: partial(own.__setitem__, name))
    for name, value in named.items():
        yield from _inside(name, value)


def _inside(name: str, value: Any) -> Iterator[Place]:
    if isinstance(value, dict | list):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        shown = dict(pairs) if len(value) <= MOST else {}
        yield from _members("loss", name, shown, lambda key: partial(value.__setitem__, key))
    elif isinstance(value, nn.Module):
        for inner, module in value.named_modules():
            yield from _of_module("loss", ".".join(filter(None, (name, inner))), module)
    elif not isinstance(value, type | ModuleType | FunctionType | torch.Tensor) and hasattr(value, "__dict__"):
        own = vars(value)
        yield from _members("loss", name, dict(own), lambda key: partial(own.__setitem__, key))
