"""The properties of an optimizer, found by letting it step small parameters."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from copy import deepcopy
from itertools import groupby
from math import prod
from typing import Final

import torch

from partita.errors import TaskError, first_line
from partita.graph.graph import Optimizer
from partita.task import Task
from partita.tracing.prepare import DTYPES
from partita.tracing.update_units import apart, joined, states_of

SHAPES: Final = ((33, 7), (5, 9), (7,), (11,), (5, 3, 3), (2, 3, 3))  # groups often go by the number of dimensions
MATRICES: Final = 2  # of them, the first
SMALL: Final = (7, 11, 5, 3, 2, 13)
STEPS: Final = 3
LATER: Final = 15  # steps after which state that is used every few steps has been
OTHERWISE: Final = ("amsgrad", "maximize", "foreach", "capturable", "differentiable", "fused")  # asked of torch's own
WHOLE: Final = (torch.float32, torch.float64)
Shape = tuple[int, ...]


def optimizer_spec(task: Task, precision: str) -> Optimizer:
    """Name and state tensors of the task's optimizer. Raises TaskError if it cannot be built or cannot step."""
    parameter = torch.nn.Parameter(torch.ones(16, 24, dtype=DTYPES[precision]))
    parameter.grad = torch.ones_like(parameter)
    try:
        optimizer = task.optimizer([parameter])
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise TypeError(f"it returned {type(optimizer).__name__}")
        optimizer.step()
    except Exception as error:
        raise TaskError(
            f"the optimizer of {task.name!r} could not take a step on one parameter ({type(error).__name__}: {error}); "
            "return a torch.optim.Optimizer over the parameters given whose step takes no arguments"
        ) from error
    _check_schedule(task, optimizer)
    name = type(optimizer).__name__
    state = tuple(
        (key, value.numel() / parameter.numel(), str(value.dtype)[6:])
        for key, value in optimizer.state[parameter].items()
        if isinstance(value, torch.Tensor) and value.numel() > 1
    )
    return Optimizer(
        name, state, elementwise(task), joins=joins(task), fused=bool(optimizer.defaults.get("fused")),
        one_pass=one_pass(optimizer), alone=alone(task),
    )  # fmt: skip


def one_pass(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a processor takes its steps in one pass over memory (`kernels/adam`): torch's own Adam or AdamW, as they
    come, of dense parameters in fp32 or fp64."""
    if type(optimizer) not in (torch.optim.Adam, torch.optim.AdamW):
        return False
    told = {name for group in optimizer.param_groups for name in OTHERWISE if group.get(name)}
    numbers = (number for group in optimizer.param_groups for number in (group["lr"], *group["betas"]))
    hooked = optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks
    if told or hooked or not all(isinstance(number, float | int) for number in numbers):
        return False
    weights = (weight for group in optimizer.param_groups for weight in group["params"])
    return all(w.device.type == "cpu" and w.dtype in WHOLE and w.is_contiguous() for w in weights)


def state_of_shapes(task: Task, precision: str, shapes: Sequence[Shape]) -> tuple[tuple[str, float, str], ...]:
    """The state tensors (name, elements for each of the parameters', dtype) of parameters of all these shapes, where
    state goes by rows and columns (Adafactor): which of a parameter's dimensions it has tells a small one of as many.
    () where the optimizer does not take such."""
    found: dict[tuple[str, str], int] = {}
    try:
        for count, alike in groupby(sorted(shapes, key=len), key=len):
            small = torch.nn.Parameter(torch.ones(SMALL[:count], dtype=DTYPES[precision]))
            small.grad, many = torch.ones_like(small), list(alike)
            optimizer = task.optimizer([small])
            optimizer.step()
            for key, value in optimizer.state[small].items():
                if isinstance(value, torch.Tensor) and value.numel() > 1:
                    place = key, str(value.dtype)[6:]
                    found[place] = found.get(place, 0) + sum(_elements(value, small, shape) for shape in many)
    except Exception:
        # The user's optimizer takes no parameters of such shapes by themselves: what one matrix told stands.
        return ()
    whole = sum(map(prod, shapes))
    return tuple((key, elements / whole, dtype) for (key, dtype), elements in found.items())


def _elements(state: torch.Tensor, small: torch.Tensor, shape: Shape) -> int:
    """Of a state tensor of a parameter of `shape`, if the `small` one has `state`."""
    if state.dim() == small.dim() and all(size in (1, own) for size, own in zip(state.shape, small.shape, strict=True)):
        return prod(size for size, kept in zip(shape, state.shape, strict=True) if kept > 1)
    return round(prod(shape) * state.numel() / small.numel())


def _check_schedule(task: Task, optimizer: torch.optim.Optimizer) -> None:
    """Raises TaskError where the task's schedule cannot be stepped once a step."""
    if task.schedule is None:
        return
    try:
        schedule = task.schedule(optimizer)
        optimizer.step()
        schedule.step()
    except Exception as error:
        raise TaskError(
            f"the schedule of {task.name!r} could not be stepped without arguments ({first_line(error)}); give one "
            "that goes by steps, for losses are known on some ranks only"
        ) from error


def optimizer_for(task: Task, parts: list[torch.Tensor]) -> torch.optim.Optimizer:
    """The task's optimizer of `parts` of weights, which count as trained while it is made: many filter by that. Raises
    TaskError."""
    trained = [part.requires_grad for part in parts]
    try:
        return task.optimizer([part.requires_grad_() for part in parts])
    except Exception as error:
        raise TaskError(
            f"the optimizer of {task.name!r} could not be made for the model's parameters ({first_line(error)}); "
            "make task.optimizer(task.model().parameters()) work on its own first"
        ) from error
    finally:
        for part, before in zip(parts, trained, strict=True):
            part.requires_grad_(before)


def elementwise(task: Task) -> bool:
    """Whether the optimizer does the same to each element, whatever tensor it is part of. A few steps on small tensors
    tell: all of them, the first `alone`, all joined into one."""
    try:
        (plain, *_), (flat, *_) = _stepped(task), _stepped(task, join=True)
    except Exception:  # the user's optimizer does not take tensors of such shapes: they cannot be cut or joined
        return False
    return torch.allclose(plain, flat, rtol=1e-9, atol=0.0) and alone(task)


def alone(task: Task) -> bool:
    """Whether the optimizer does the same to a tensor alone as among others: to the first of SHAPES, among all that it
    takes. One that takes none may do anything."""
    if not (count := _taken(task)):
        return False
    (together, *_), (first, *_) = _stepped(task, count=count), _stepped(task, count=1)
    return torch.allclose(together[: len(first)], first, rtol=1e-9, atol=0.0)


def _taken(task: Task) -> int:
    """How many of SHAPES the optimizer steps, together and the first by itself: all, the matrices if it takes only such
    (Muon), or none."""
    for count in (len(SHAPES), MATRICES):
        with suppress(Exception):  # a user's code says in its own way that it takes no tensors of such shapes
            _stepped(task, count=1)
            _stepped(task, count=count)
            return count
    return 0


def joins(task: Task) -> bool:
    """Whether it also gives the same bits if tensors are joined. torch's fused optimizers do not: they compute the last
    few elements of a tensor in another way."""
    return elementwise(task) and all(map(torch.equal, *(_stepped(task, torch.float32, join=j) for j in (True, False))))


def check_saved(task: Task) -> None:
    """Raises TaskError where the optimizer's steps depend on what it keeps outside of `state`, which is all that
    checkpoints hold of it."""
    if _keeps_aside(task):
        raise TaskError(
            f"the optimizer of {task.name!r} keeps what its steps depend on outside of its `state`, which is all that "
            "checkpoints hold of it; keep it in self.state[parameter], or train without checkpoints"
        )


def _keeps_aside(task: Task) -> bool:
    """Whether one that is made anew, with the weights of another, its state and the settings of its groups, takes other
    steps."""
    draw = torch.Generator().manual_seed(0)
    mine = [torch.randn(shape, generator=draw).double() for shape in SHAPES[: _taken(task)]]
    theirs = [tensor.clone() for tensor in mine]
    if mine:
        with torch.random.fork_rng(devices=[]):
            one, other = optimizer_for(task, mine), optimizer_for(task, theirs)
            for k in range(STEPS):
                _step_on(one, mine, k)
            for own, new in zip(mine, theirs, strict=True):
                new.detach().copy_(own)
                if own in one.state:
                    other.state[new] = deepcopy(one.state[own])
            for group, settings in zip(other.param_groups, one.param_groups, strict=True):
                group.update(deepcopy({key: value for key, value in settings.items() if key != "params"}))
            for k in range(STEPS, LATER):
                _step_on(one, mine, k)
                _step_on(other, theirs, k)
    return not all(torch.allclose(*pair, rtol=1e-9, atol=0.0) for pair in zip(mine, theirs, strict=True))


def _step_on(optimizer: torch.optim.Optimizer, pieces: Sequence[torch.Tensor], k: int) -> None:
    """The k-th step on gradients, and with random numbers, that are the same for all."""
    draw = torch.Generator().manual_seed(k)
    for piece in pieces:
        piece.grad = torch.randn(piece.shape, generator=draw).to(piece.dtype)
    torch.default_generator.manual_seed(k)
    optimizer.step()


def _stepped(
    task: Task, dtype: torch.dtype = torch.float64, count: int = len(SHAPES), *, join: bool = False
) -> list[torch.Tensor]:
    """By how much STEPS steps move the first `count` tensors of SHAPES, as one flat tensor, and the state tensors of
    each."""
    sizes, draw = [prod(shape) for shape in SHAPES], torch.Generator().manual_seed(0)
    first, *drawn = [torch.randn(sum(sizes), generator=draw).to(dtype)[: sum(sizes[:count])] for _ in range(STEPS + 1)]
    now = first.clone()
    parts = torch.split(now, sizes[:count])
    pieces = [part.view(shape) for part, shape in zip(parts, SHAPES, strict=False)]
    optimizer = optimizer_for(task, pieces)
    units = joined(optimizer, pieces, apart(pieces)) if join else apart(pieces)
    for flat in drawn:
        gradients = torch.split(flat, [unit.tensor.numel() for unit in units])
        for unit, gradient in zip(units, gradients, strict=True):
            unit.tensor.grad = gradient.view(unit.tensor.shape)
        optimizer.step()
    states = states_of(optimizer, pieces, units)
    return [now - first, *(value for state in states for value in state.values() if isinstance(value, torch.Tensor))]
