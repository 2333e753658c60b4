"""The properties of an optimizer, found by letting it step small parameters."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext, suppress
from copy import deepcopy
from itertools import groupby
from math import prod
from typing import Final

import torch

from partita.errors import TaskError, first_line
from partita.graph.graph import Optimizer
from partita.task import Task
from partita.tracing.elements import Watched
from partita.tracing.prepare import DTYPES
from partita.tracing.spelling import spelt
from partita.tracing.update_units import apart, joined, states_of

SHAPES: Final = (
    (33, 7), (5, 9), (7,), (11,), (5, 3, 3), (2, 3, 3), (2, 3, 2, 2), (3, 2, 3, 1),
)  # in pairs, since groups often go by the number of dimensions  # fmt: skip
MATRICES: Final = 2  # of them, the first
SMALL: Final = (7, 11, 5, 3, 2, 13)
STEPS: Final = 3
LATER: Final = 15  # steps after which state that is used every few steps has been
SCALES: Final = {5: 1e-3, 8: 1e4}  # of the gradients of some steps: bounds on them hold, or no longer do
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
        (key, value.numel() / parameter.numel(), spelt(value.dtype))
        for key, value in optimizer.state[parameter].items()
        if isinstance(value, torch.Tensor) and value.numel() > 1
    )
    by_tensor = alone(task)
    by_element = by_tensor and _by_element(task)
    return Optimizer(
        name, state, by_element, joins=by_element and _same_bits(task), fused=bool(optimizer.defaults.get("fused")),
        one_pass=one_pass(optimizer), alone=by_tensor,
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
                    place = key, spelt(value.dtype)
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


def _by_element(task: Task) -> bool:
    """Whether one that does the same to a tensor alone does it to each element, whatever tensor it is part of. Steps on
    small tensors tell, apart and all joined into one; and so do the operators that steps call, since a bound may hold
    and statistics be unused until long after."""
    seen = Watched()
    try:
        (plain, *_), (flat, *_) = _stepped(task, seen=seen), _stepped(task, join=True)
    except Exception:  # the user's optimizer does not take tensors of such shapes: they cannot be cut or joined
        return False
    return not seen.mixed and torch.allclose(plain, flat, rtol=1e-9, atol=0.0)


def alone(task: Task) -> bool:
    """Whether the optimizer does the same to a tensor alone as among others: to every other one of SHAPES and to the
    rest, among all that it takes. One that takes none may do anything."""
    if not (count := _taken(task)):
        return False
    together, *_ = _stepped(task, of=range(count), among=count)
    parts = torch.split(together.view(LATER, -1), [prod(shape) for shape in SHAPES[:count]], dim=1)
    halves = [_stepped(task, of=range(k, count, 2), among=count)[0] for k in range(2)]
    return all(
        torch.allclose(torch.cat(parts[k::2], 1).flatten(), half, rtol=1e-9, atol=0.0) for k, half in enumerate(halves)
    )


def _taken(task: Task) -> int:
    """How many of SHAPES the optimizer steps, together and every other one: all, the matrices if it takes only such
    (Muon), or none."""
    for count in (len(SHAPES), MATRICES):
        with suppress(Exception):  # a user's code says in its own way that it takes no tensors of such shapes
            for of in (range(0, count, 2), range(count)):
                _stepped(task, of=of, among=count)
            return count
    return 0


def _same_bits(task: Task) -> bool:
    """Whether it also gives the same bits if tensors are joined. torch's fused optimizers do not: they compute the last
    few elements of a tensor in another way."""
    return all(map(torch.equal, *(_stepped(task, torch.float32, join=j) for j in (True, False))))


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
    task: Task, dtype: torch.dtype = torch.float64, of: Sequence[int] = range(len(SHAPES)),
    among: int = len(SHAPES), *, join: bool = False, seen: Watched | None = None,
) -> list[torch.Tensor]:  # fmt: skip
    """By how much the tensors `of` SHAPES have moved after each of LATER steps, which `seen` watches, as one flat
    tensor, and the state tensors of each in the end. They are stepped as some of the first `among` of SHAPES."""
    draw, sizes = torch.Generator().manual_seed(0), list(map(prod, SHAPES))
    drawn = [torch.split(torch.randn(sum(sizes), generator=draw).to(dtype), sizes) for _ in range(LATER + 1)]
    first, *gradients = [torch.cat([parts[k] for k in of]) for parts in drawn]
    now, moved = first.clone(), list[torch.Tensor]()
    parts = torch.split(now, [sizes[k] for k in of])
    pieces = [part.view(SHAPES[k]) for k, part in zip(of, parts, strict=True)]
    optimizer = _grouped(task, pieces, of, among)
    units = joined(optimizer, pieces, apart(pieces)) if join else apart(pieces)
    for step, flat in enumerate(gradients):
        each = torch.split(flat * SCALES.get(step, 1.0), [unit.tensor.numel() for unit in units])
        for unit, gradient in zip(units, each, strict=True):
            unit.tensor.grad = gradient.view(unit.tensor.shape)
        with seen or nullcontext():
            optimizer.step()
        moved.append(now - first)
    states = states_of(optimizer, pieces, units)
    return [torch.cat(moved), *(v for state in states for v in state.values() if isinstance(v, torch.Tensor))]


def _grouped(task: Task, pieces: list[torch.Tensor], of: Sequence[int], among: int) -> torch.optim.Optimizer:
    """The task's optimizer of these pieces, in the groups that they have among the first `among` of SHAPES: a run gives
    each part that of the whole model."""
    optimizer = optimizer_for(task, pieces)
    if len(pieces) < among:
        whole = [torch.zeros(shape, dtype=pieces[0].dtype) for shape in SHAPES[:among]]
        own = {id(whole[k]): piece for k, piece in zip(of, pieces, strict=True)}
        groups = [
            group | {"params": [own[id(tensor)] for tensor in group["params"] if id(tensor) in own]}
            for group in optimizer_for(task, whole).param_groups
        ]
        optimizer.param_groups[:] = [group for group in groups if group["params"]]
    return optimizer
