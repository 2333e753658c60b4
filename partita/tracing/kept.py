"""What a model and a loss keep from step to step beside parameters and buffers.

model   attributes of its modules and of their own classes
loss    what it is bound to, variables of its closure and globals that it names; the same of functions that it calls

Within these, dicts, lists and objects down to DEPTH. What torch, numpy and the standard library keep for themselves is
not looked at, nor are functions that are installed and not the user's.
"""

from __future__ import annotations

import random
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from sysconfig import get_paths
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Final

import numpy as np
import torch
from torch import nn

from partita.task import Task
from partita.tracing.copies import copied
from partita.tracing.numbers import Number
from partita.tracing.prepare import cast

PLAIN: Final = (int, float, str, bool, type(None))
GENERATORS: Final = (random.Random, np.random.Generator, np.random.RandomState)
CONTAINERS: Final = (dict, OrderedDict, defaultdict, Counter, list, deque, set)
MOST: Final = 1000  # members of a dict or a list that are looked at
LARGEST: Final = 10**6  # elements of an array that is looked at
DEPTH: Final = 4
MODULES_OWN: Final = frozenset(vars(nn.Module()))  # what torch keeps in a module, its parameters, buffers and hooks
THEIRS: Final = frozenset(sys.stdlib_module_names) - {"types", "argparse"} | {"torch", "numpy"}
INSTALLED: Final = tuple({get_paths()[name] for name in ("stdlib", "purelib", "platlib")})
Put = Callable[[Any], None]


@dataclass(frozen=True)
class Place:
    """Where a value is kept: who keeps it, under which name, and how another is put there."""

    who: str
    name: str
    value: Any
    put: Put


def kept(task: Task, model: nn.Module | None = None) -> dict[tuple[str, str], Place]:
    """All places of what may change, by who keeps a value and its name; those of the loss alone without a model."""
    places = (*(() if model is None else _inside("model", "", model, 0, set())), *_of_loss(task))
    return {(place.who, place.name): place for place in places if _tells(place.value)}


def own_values(task: Task, model: nn.Module | None) -> dict[tuple[str, str], Any]:
    """The values that are kept, tensors by identity, and arrays and generators by what is in them."""
    return {key: _told(place.value) for key, place in kept(task, model).items()}


def changes(task: Task, model: nn.Module, before: Mapping[tuple[str, str], Any]) -> dict[tuple[str, str], Any]:
    """What is kept otherwise than in `before`, which `own_values` gave; of tensors, that they are."""
    places = kept(task, model)
    after = {key: _told(place.value) for key, place in places.items()}
    return {
        key: type(places[key].value) if isinstance(places[key].value, torch.Tensor | Number) else value
        for key, value in after.items() if key not in before or before[key] != value
    }  # fmt: skip


@contextmanager
def put_back(task: Task) -> Iterator[None]:
    """A context after which the loss keeps what it kept before."""
    places = list(_of_loss(task))
    before = {(place.who, place.name): place for place in places if _tells(place.value)}
    held = {id(place.value): place.value for place in places}
    contents = [back for value in held.values() if (back := _contents(value))]
    try:
        yield
    finally:
        for back in contents:
            back()
        for key, place in kept(task).items():
            if key in before and before[key].value is not place.value:
                place.put(before[key].value)


@contextmanager
def loss_in(task: Task, precision: str) -> Iterator[None]:
    """A context in which the modules that the loss keeps, such as a teacher, are copies in `precision`."""
    places = [place for place in _of_loss(task) if isinstance(place.value, nn.Module)]
    copies = {id(place.value): place.value for place in places}
    copies = {number: cast(copied(module), precision) for number, module in copies.items()}
    try:
        for place in places:
            place.put(copies[id(place.value)])
        yield
    finally:
        for place in places:
            place.put(place.value)


def _tells(value: Any) -> bool:
    return type(value) in PLAIN or isinstance(value, (torch.Tensor, Number, np.generic, np.ndarray, *GENERATORS))


def _told(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return (value.shape, hash(value.tobytes())) if value.size <= LARGEST else id(value)
    if isinstance(value, torch.Tensor | Number):
        return id(value)
    if isinstance(value, GENERATORS):
        return repr(_state(value))
    return value if value == value else repr(value)


def _state(generator: Any) -> Any:
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    if isinstance(generator, np.random.RandomState):
        return generator.get_state()
    return generator.getstate() if type(generator) is random.Random else None


def _contents(value: Any) -> Callable[[], Any] | None:
    """What puts the contents back that `value` has now; None for what has none."""
    if type(value) in CONTAINERS and len(value) <= MOST:
        return partial(_refill, value, list(value.items() if isinstance(value, dict) else value))
    if isinstance(value, np.ndarray) and value.size <= LARGEST and value.flags.writeable:
        return partial(value.__setitem__, ..., value.copy())
    if isinstance(value, torch.Generator):
        return partial(value.set_state, value.get_state())
    if isinstance(value, np.random.Generator):
        return partial(setattr, value.bit_generator, "state", value.bit_generator.state)
    if isinstance(value, np.random.RandomState):
        return partial(value.set_state, value.get_state())
    return partial(value.setstate, value.getstate()) if type(value) is random.Random else None


def _refill(container: Any, members: list[Any]) -> None:
    container.clear()
    add = container.extend if isinstance(container, list | deque) else partial(dict.update, container)
    (container.update if isinstance(container, set) else add)(members)


def _of_loss(task: Task) -> Iterator[Place]:
    yield from _inside("loss", "", task.loss, 0, set())


def _inside(who: str, name: str, value: Any, depth: int, seen: set[int]) -> Iterator[Place]:
    """The places in `value`, and in what is found there, that nobody has looked into."""
    if id(value) in seen or depth > DEPTH:
        return
    seen.add(id(value))
    for key, member, put in _members(value):
        place = Place(who, ".".join(filter(None, (name, str(key)))), member, put)
        yield place
        yield from _inside(who, place.name, member, depth + 1, seen)


def _members(value: Any) -> Iterator[tuple[Any, Any, Put]]:
    """Name, value and how to put another, of what `value` is made of and may change."""
    if isinstance(value, partial):
        for given in (*value.args, *value.keywords.values(), value.func):
            yield "", given, _nowhere
    elif isinstance(value, MethodType):
        yield from (("", part, _nowhere) for part in (value.__self__, value.__func__))
    elif isinstance(value, FunctionType):
        yield from _of_function(value)
    elif isinstance(value, dict | list | deque):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        shown = dict(pairs) if len(value) <= MOST else {}
        yield from _each(shown, lambda key: partial(value.__setitem__, key))
    elif isinstance(value, nn.Module):
        for name, module in value.named_modules():
            yield from ((".".join(filter(None, (name, key))), *more) for key, *more in _of_module(module))
    elif not isinstance(value, type | ModuleType | torch.Tensor) and hasattr(value, "__dict__") and _users(value):
        own = vars(value)
        yield from _each(dict(own), lambda key: partial(own.__setitem__, key))
        if isinstance(call := vars(type(value)).get("__call__"), FunctionType):
            yield "", call, _nowhere


def _each(own: Mapping[Any, Any], put: Callable[[Any], Put]) -> Iterator[tuple[Any, Any, Put]]:
    yield from ((key, value, put(key)) for key, value in own.items())


def _nowhere(value: Any) -> None:
    """What is given once stays what it is."""


def _users(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] not in THEIRS


def _of_module(module: nn.Module) -> Iterator[tuple[Any, Any, Put]]:
    own = {key: value for key, value in vars(module).items() if key not in MODULES_OWN}
    yield from _each(own, lambda key: partial(setattr, module, key))
    if not _users(module):
        return
    kind, forward = type(module), type(module).forward
    shared = {key: each for key, each in vars(kind).items() if type(each) in PLAIN and not key.startswith("__")}
    yield from _each(shared, lambda key: partial(setattr, kind, key))
    if isinstance(forward, FunctionType):
        yield "", forward, _nowhere


def _of_function(function: FunctionType) -> Iterator[tuple[Any, Any, Put]]:
    code = function.__code__
    if code.co_filename.startswith(INSTALLED):
        return
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents, partial(setattr, cell, "cell_contents")
        except ValueError:  # a variable that has no value yet
            continue
    own = function.__globals__
    named = {name: own[name] for name in _names(code) if name in own}
    yield from _each(named, lambda name: partial(own.__setitem__, name))


def _names(code: CodeType) -> Iterator[str]:
    """The globals that a function names, and functions written in it."""
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names(inner)
