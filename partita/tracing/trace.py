"""One training step at one batch size, on fake tensors: forward, loss and gradients as a list of calls."""

from __future__ import annotations

from collections.abc import Container, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode
from torch.nn.utils import stateless
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from partita.errors import CaptureError, PartitaError, first_line
from partita.task import Task
from partita.tracing.assigned import Assigned
from partita.tracing.calls import AtenCall
from partita.tracing.conditions import Conditions
from partita.tracing.copies import fakes_cloned
from partita.tracing.fused import Fused
from partita.tracing.hidden_inputs import Varying, exporting, seen_through
from partita.tracing.kept import changes, own_values, put_back
from partita.tracing.known import NeedsData
from partita.tracing.masks import Masks
from partita.tracing.numbers import Numbers
from partita.tracing.prepare import (
    Rest,
    build_batch,
    check_frozen,
    check_gradient,
    check_unchanged,
    checked_model,
    flatten,
    hooked,
    in_precision,
    parted,
    split_loss,
    untrained,
)
from partita.tracing.promote import Promoted
from partita.tracing.record import ModuleStack, Recorder, plain
from partita.tracing.successive import check_python_random, python_random_state

FEW = 8  # samples that are looked at for themselves, all over the data


@dataclass(frozen=True)
class Leaves:
    """What a step begins with, as fake tensors: parameters and buffers by name, inputs in the order of the batch."""

    parameters: dict[str, torch.Tensor]
    buffers: dict[str, torch.Tensor]
    inputs: list[torch.Tensor]

    def parted(self, changed: Container[str]) -> Leaves:
        """The leaves with the frozen parameters that a step has `changed` among the buffers, behind the others."""
        return Leaves(*parted(self.parameters, self.buffers, changed), self.inputs)


@dataclass(frozen=True)
class Trace:
    """What one traced step leaves: its calls, its leaves and its results, all fake tensors, what is left otherwise in
    what the model and the loss keep, and whether anything drew from Python's generator."""

    model: nn.Module
    calls: list[AtenCall]
    leaves: Leaves
    tangent: torch.Tensor
    loss: torch.Tensor
    weight: torch.Tensor | None
    gradients: dict[str, torch.Tensor]
    mutations: dict[str, torch.Tensor]
    left: dict[tuple[str, str], Any]
    drawn: bool


class Unchecked(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Inside, torch.linalg does not ask whether a matrix was singular, of which functional traces can say nothing;
    what it makes of one is not finite, and ranks look at that."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return None if func is torch.ops.aten._linalg_check_errors.default else func(*args, **(kwargs or {}))


def trace_step(task: Task, batch: int, precision: str, conditions: Conditions, *, real: bool) -> Trace:
    """Trace one step on `batch` samples, whose `conditions` say which sides are taken; `real` builds the model with
    data, else no memory is taken for it."""
    return _traced(task, batch, precision, Recorder(conditions), real=real)


def _traced(
    task: Task, batch: int, precision: str, fake: Recorder, *, real: bool, unknown: frozenset[str] = frozenset()
) -> Trace:
    """One step, recorded. The values of the buffers in `unknown` are not known, though they were made from plain
    numbers."""
    model = checked_model(task) if real else _model_without_data(task, fake)
    tensors, rest = _alike(task, batch, precision)
    leaves = _leaves(model, tensors, fake, precision)
    for name in unknown:
        (leaves.parameters | leaves.buffers)[name].constant = None  # type: ignore[attr-defined]
    fixed = {name: b for name, b in model.named_buffers() if real and name not in unknown}
    fake.data = {id(leaves.buffers[name]): in_precision(b.detach(), precision) for name, b in fixed.items()}
    fresh = (*leaves.inputs, *leaves.parameters.values(), *(t for name, t in leaves.buffers.items() if name in unknown))
    fake.changing = {id(t) for t in fresh}
    with put_back(task), _functional(fake, precision):
        made = fake.conditions.traced(lambda: _step(task, model, leaves, rest, fake))
    buffers = made.leaves.buffers
    known = {n for n in made.mutations if n in fixed or getattr(buffers[n], "constant", None) is not None}
    if fake.looked and known:  # a value that was looked at may be that of a buffer's first step
        return _traced(task, batch, precision, Recorder(fake.conditions), real=real, unknown=frozenset(known))
    if made.drawn:
        check_python_random(task)
    return made


@contextmanager
def _functional(fake: Recorder, precision: str) -> Iterator[None]:
    """A context in which functional tensors stand for fake ones, and no call that is recorded changes one in place."""
    with ExitStack() as stack:
        stack.enter_context(exporting())
        for context in (seen_through(), fakes_cloned(), fake):
            stack.enter_context(context)
        if precision == "fp64":
            stack.enter_context(Promoted())
        stack.enter_context(FunctionalTensorMode())
        yield


def _step(task: Task, model: nn.Module, leaves: Leaves, rest: Rest, fake: Recorder) -> Trace:
    """Forward, loss and gradients on functional tensors that stand for the leaves."""
    trainable = [name for name, p in model.named_parameters() if p.requires_grad]
    before = leaves.parameters | leaves.buffers
    held = _held(model, before, trainable)
    given = rest.batch([FunctionalTensor.to_functional(t) for t in leaves.inputs])
    with (
        ModuleStack(model) as fake.places,
        stateless._reparametrize_module(model, held, tie_weights=True),
        Numbers(),
        Fused(),
        Unchecked(),
        Assigned(),
        Masks(fake) as masks,
    ):
        state, values = python_random_state(), own_values(task, model)
        loss, weight = split_loss(task, task.loss(model, given))
        drawn = python_random_state() != state
        masks.check_products()
        check_frozen(model, trainable)
        after = untrained(model)
        with _disable_current_modes():
            tangent = fake.from_tensor(torch.ones((), dtype=loss.dtype))
        fake.backward = True
        gradients = _gradients(loss, {name: held[name] for name in trainable}, tangent)
    check_unchanged(name for name in trainable if plain(held[name]) is not leaves.parameters[name])
    changed = _changed(after, before)
    return Trace(
        model, fake.calls, leaves.parted(changed), tangent, plain(loss), None if weight is None else plain(weight),
        {name: plain(g) for name, g in gradients.items()}, changed, changes(task, model, values), drawn,
    )  # fmt: skip


def _held(model: nn.Module, tensors: dict[str, torch.Tensor], trainable: list[str]) -> dict[str, torch.Tensor]:
    """Functional tensors that stand for a model's parameters and buffers, with the hooks of those that are trained."""
    held: dict[str, torch.Tensor] = {name: FunctionalTensor.to_functional(t) for name, t in tensors.items()}
    named = dict(model.named_parameters())
    for name in trainable:
        hooked(held[name].requires_grad_(), named[name])
    return held


def _gradients(loss: torch.Tensor, trained: dict[str, torch.Tensor], tangent: torch.Tensor) -> dict[str, torch.Tensor]:
    """The gradients of what is trained, of which the loss reads some only."""
    seed = FunctionalTensor.to_functional(tangent)
    found = torch.autograd.grad(loss, list(trained.values()), seed, allow_unused=True)
    gradients = {name: g for name, g in zip(trained, found, strict=True) if g is not None}
    for name, gradient in gradients.items():
        check_gradient(name, gradient)
    return gradients


def _changed(after: dict[str, torch.Tensor], before: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """What the forward pass has changed of buffers and frozen parameters: the fake tensors that they are now."""
    now = {name: plain(t) for name, t in after.items() if name in before and isinstance(t, FunctionalTensor)}
    return {name: new for name, new in now.items() if new is not before[name]}


def _alike(task: Task, batch: int, precision: str) -> tuple[list[torch.Tensor], Rest]:
    """A batch, and what it has beside its tensors, with a Varying for what other samples have otherwise. Raises
    CaptureError where batches of `batch` samples have tensors of other shapes."""
    length = len(task.data)
    (tensors, rest), *others = [
        flatten(build_batch(task, [(start + i * step) % length for i in range(batch)], precision))
        for start, step in ((0, 1), (length - 1, -1), (batch, 1))
    ]
    single = [flatten(build_batch(task, [i * length // FEW], precision)) for i in range(FEW)]
    for (first, own), *alike in ([(tensors, rest), *others], single):
        for more, other in alike:
            if [tensor.shape for tensor in more] != [tensor.shape for tensor in first] or other.spec != own.spec:
                raise CaptureError(
                    "batches of as many samples have tensors of other shapes; pad them to one length to have it traced"
                )
    rest.leaves = [_seen(mine, [other.leaves[i] for _, other in others]) for i, mine in enumerate(rest.leaves)]
    return tensors, rest


def _seen(mine: Any, others: list[Any]) -> Any:
    """What a step sees of a value that is no tensor. Raises CaptureError where it is of another type in another batch:
    nothing can stand for what is None in some."""
    if other := next((type(one) for one in others if type(one) is not type(mine)), None):
        raise CaptureError(
            f"a part of the batch that is no tensor is of type {type(mine).__name__} in one batch and of type "
            f"{other.__name__} in another; make it a tensor that is always there to have it traced"
        )
    return mine if all(_same(mine, one) for one in others) else Varying(type(mine))


def _same(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except Exception:  # arrays, and whatever else compares otherwise
        return False


def _model_without_data(task: Task, mode: FakeTensorMode) -> nn.Module:
    try:
        with mode:
            return checked_model(task)
    except PartitaError:
        raise
    except Exception as error:
        raise NeedsData(f"the model of {task.name!r} looks at data while it is built ({first_line(error)})") from error


def elements_of(task: Task) -> int:
    """Elements of the model's parameters, without memory for them; 0 for a model that looks at data while it is built,
    of which nothing is known before it is. Raises TaskError for what cannot be trained."""
    try:
        return sum(
            p.numel() for p in _model_without_data(task, FakeTensorMode(allow_non_fake_inputs=True)).parameters()
        )
    except NeedsData:
        return 0


def _leaves(model: nn.Module, inputs: list[torch.Tensor], mode: FakeTensorMode, precision: str) -> Leaves:
    """The leaves, row by row as ranks hold them: what is traced of a determinant, say, depends on it."""
    parameters = {name: _fake(p.detach().contiguous(), mode, precision) for name, p in model.named_parameters()}
    buffers = {name: _fake(b.detach().contiguous(), mode, precision) for name, b in model.named_buffers()}
    return Leaves(parameters, buffers, [_fake(t, mode, precision) for t in inputs])


def _fake(tensor: torch.Tensor, mode: FakeTensorMode, precision: str) -> torch.Tensor:
    with mode, torch.no_grad():
        fake = tensor.detach() if isinstance(tensor, FakeTensor) else mode.from_tensor(tensor.detach())
        return in_precision(fake, precision)
