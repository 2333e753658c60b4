"""What a capture and every rank prepare in the same way: the model in the task's precision, and batches as flat
tensors."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import is_dataclass
from itertools import chain
from typing import Any, Final

import numpy as np
import torch
from torch import nn
from torch.utils._pytree import (
    TreeSpec,
    register_dataclass,
    tree_flatten,
    tree_leaves,
    tree_map,
    tree_unflatten,
)  # fmt: skip
from torch.utils.data import default_collate

from partita.errors import Ended, TaskError, first_line
from partita.graph.graph import TANGENT
from partita.graph.tensor import DTYPE_OF, PRECISION_OF
from partita.task import Task
from partita.tracing.copies import fakes_cloned
from partita.tracing.leaves import changed
from partita.tracing.numbers import Number
from partita.tracing.spelling import spelt

Tensors = Mapping[str, torch.Tensor]
TAKEN: Final = re.compile(rf"{TANGENT}|(input|constant)\.\d+")  # names of a graph's own values
DTYPES: Final[dict[str, torch.dtype]] = {precision: getattr(torch, name) for precision, name in DTYPE_OF.items()}


def build_model(task: Task, precision: str) -> nn.Module:
    """The task's model with every float in `precision`. Raises TaskError for what cannot be trained."""
    return cast(checked_model(task), precision)


def cast(model: nn.Module, precision: str) -> nn.Module:
    """The module with every float in `precision`. Complex numbers stay: `Module.to` would drop what is imaginary."""
    model._apply(lambda tensor: in_precision(tensor, precision))  # type: ignore[no-untyped-call]
    return model


def checked_model(task: Task) -> nn.Module:
    """The task's model as it builds it, in training mode as loops put it, so that what is to stay in evaluation mode
    overrides `train`. Raises TaskError for what cannot be trained."""
    model = _built(task)
    parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
    _check_parameters(task, parameters)
    for name in filter(TAKEN.fullmatch, chain(parameters, buffers)):
        raise TaskError(
            f"the model has a tensor called {name!r}, as a captured step calls one of its own; give it another name "
            f"than {TANGENT}, input.0, constant.0 and the like"
        )
    _check_buffers(buffers)
    if pair := _overlapping(parameters, buffers):
        raise TaskError(
            f"{pair[0]!r} and {pair[1]!r} share memory, of which an optimizer knows nothing; give both modules one "
            "Parameter (decoder.weight = encoder.weight), transposed in forward() if need be, or a buffer a copy"
        )
    return model.train()


def _built(task: Task) -> nn.Module:
    """What Task.model returns. Raises TaskError where that is no module."""
    try:
        with fakes_cloned():
            model = task.model()
    except Ended:
        raise
    except SystemExit as stop:
        raise TaskError(
            f"Task.model of {task.name!r} left with exit code {stop.code!r} before it was done; make task.model() "
            "return a module"
        ) from stop
    if not isinstance(model, nn.Module):
        raise TaskError(f"Task.model of {task.name!r} returned {type(model).__name__}; return a torch.nn.Module")
    return model


def _check_parameters(task: Task, parameters: Mapping[str, nn.Parameter]) -> None:
    lazy = next((name for name, p in parameters.items() if isinstance(p, nn.parameter.UninitializedParameter)), "")
    if lazy:
        raise TaskError(
            f"parameter {lazy!r} has no shape before the model has run; run it once on a sample in Task.model, or give "
            "the layer its sizes"
        )
    if not parameters:
        raise TaskError(f"the model of {task.name!r} has no parameters; give a model that can be trained")
    if not any(p.requires_grad for p in parameters.values()):
        raise TaskError(f"no parameter of {task.name!r} requires a gradient; set requires_grad on those to be trained")
    for name, parameter in parameters.items():
        if parameter.layout is not torch.strided or parameter.is_quantized:
            raise TaskError(f"parameter {name!r} is sparse or quantized; make it a dense float tensor to train it")
        _check_dtype(name, parameter.dtype, task.precision)
        if parameter.is_complex():
            raise TaskError(
                f"parameter {name!r} is complex; keep it as real numbers, two in its last dimension, and call "
                "torch.view_as_complex on it in forward()"
            )
        if getattr(parameter, "_post_accumulate_grad_hooks", None):
            raise TaskError(
                f"parameter {name!r} has a hook that runs once its gradient is there, as optimizers in the backward "
                "pass have; take it out, for gradients are summed over devices first"
            )


def _check_dtype(name: str, dtype: torch.dtype, precision: str) -> None:
    """Raises TaskError for a parameter that the user made in another precision than the task's; float32 is torch's own
    choice, and becomes any."""
    given = PRECISION_OF.get(spelt(dtype), "fp32")
    if given not in ("fp32", precision):
        raise TaskError(
            f"parameter {name!r} is {spelt(dtype)} and Task.precision is {precision!r}; give precision={given!r}, or "
            "make the model in float32"
        )


def _check_buffers(buffers: Tensors) -> None:
    for name, buffer in buffers.items():
        if buffer.layout is not torch.strided:
            raise TaskError(
                f"buffer {name!r} is sparse, which no file of weights holds; register its indices and its values as "
                "buffers, and make the sparse tensor of them in forward()"
            )
        if buffer.requires_grad:
            raise TaskError(f"buffer {name!r} requires a gradient; make it a Parameter, or detach it")


def _overlapping(parameters: Tensors, buffers: Tensors) -> tuple[str, str] | None:
    """A parameter and another one, or a buffer, that have an element of memory in common."""
    together: dict[int, list[str]] = {}
    tensors = {**parameters, **buffers}
    for name, tensor in tensors.items():
        together.setdefault(tensor.untyped_storage()._cdata, []).append(name)
    for names in (names for names in together.values() if len(names) > 1):
        owner = np.full(max(_extent(tensors[name]) for name in names), -1, np.int32)
        for number, name in enumerate(names):
            t = tensors[name]
            strides = [step * owner.itemsize for step in t.stride()]
            mine = np.lib.stride_tricks.as_strided(owner[t.storage_offset() :], tuple(t.shape), strides)
            if t.numel() and mine.max() >= 0:
                return names[int(mine.max())], name
            if name in parameters:
                mine[...] = number
    return None


def _extent(tensor: torch.Tensor) -> int:
    """Elements of a storage up to the last one of a tensor."""
    reach = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return int(tensor.storage_offset() + reach) + 1


def check_gradient(name: str, gradient: torch.Tensor | None) -> None:
    """Raises TaskError for a gradient that no plan could sum."""
    if gradient is not None and gradient.layout is not torch.strided:
        raise TaskError(f"parameter {name!r} gets a sparse gradient; use a layer without `sparse=True`")


def untrained(model: nn.Module) -> dict[str, torch.Tensor]:
    """What a step may change besides what is trained, by name: buffers and frozen parameters."""
    return dict(model.named_buffers()) | {name: p for name, p in model.named_parameters() if not p.requires_grad}


def parted_leaves(
    model: nn.Module, changed: Container[str]
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:  # fmt: skip
    """A model's parameters and buffers as `parted`."""
    return parted(dict(model.named_parameters()), dict(model.named_buffers()), changed)


def parted(
    parameters: Mapping[str, torch.Tensor], buffers: Mapping[str, torch.Tensor], changed: Container[str]
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Parameters and buffers as a Graph has them: frozen parameters that a step has `changed` (a teacher's, an
    average's) are buffers there, behind the others."""
    moved = {name: p for name, p in parameters.items() if name in changed}
    return {name: p for name, p in parameters.items() if name not in moved}, {**buffers, **moved}


def check_unchanged(overwritten: Iterable[str]) -> None:
    """Raises TaskError for trained parameters that the forward pass changes."""
    for name in sorted(overwritten):
        raise TaskError(
            f"the forward pass changes parameter {name!r} in place; bound what it reads instead, in forward() "
            f"({name.rpartition('.')[2]}.clamp(low, high), F.normalize, an embedding's rows by F.embedding of "
            "torch.renorm(weight, 2, 0, bound)), and keep state, such as an average of other weights, in a buffer or a "
            "frozen parameter"
        )


def check_frozen(model: nn.Module, trained: Container[str]) -> None:
    """Raises TaskError for frozen parameters to which the forward pass has given a history of gradients."""
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and name not in trained:
            raise TaskError(
                f"the forward pass changes parameter {name!r}, which is frozen, while gradients are recorded, so that "
                "it is frozen no more; change it under torch.no_grad()"
            )


def standing(tensor: torch.Tensor) -> tuple[int, int]:
    """What is another once a tensor is changed, in place or by `tensor.data = ...`, which counts no version."""
    return tensor._version, tensor.data_ptr()


def hooked(leaf: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """A leaf that stands for a parameter, whose gradient goes through the same hooks."""
    for hook in (parameter._backward_hooks or {}).values():
        leaf.register_hook(hook)  # type: ignore[no-untyped-call]
    return leaf


def build_batch(task: Task, indices: Iterable[int], precision: str) -> Any:
    """The samples at `indices` collated into a batch, its float tensors in `precision`. Raises TaskError for
    samples that cannot be read or collated."""
    try:
        batch = read_batch(task, task.data, list(indices))
    except Exception as error:
        raise TaskError(
            f"the samples of {task.name!r} could not be made a batch ({first_line(error)}); "
            f"give tuples or dicts of tensors of equal shape, or a Task.collate"
        ) from error
    return tree_map(lambda leaf: changed(leaf, lambda t: in_precision(t, precision)), batch)


def read_batch(task: Task, data: Any, positions: Sequence[int]) -> Any:
    """The samples of a data set at `positions`, collated; read at once where it has `collated`, or `__getitems__`,
    which torch's DataLoader asks for too. A mapping of any kind, such as a tokenizer's, becomes a dict; pytree hears of
    dataclasses."""
    if task.collate is None and hasattr(data, "collated"):
        return data.collated(positions)
    many = getattr(data, "__getitems__", None)
    samples = [data[i] for i in positions] if many is None else many(positions)
    batch = (task.collate or default_collate)(samples)
    batch = dict(batch) if isinstance(batch, Mapping) else batch
    while kinds := {type(leaf) for leaf in tree_leaves(batch) if is_dataclass(leaf)}:
        for kind in kinds:
            register_dataclass(kind)
    return batch


def in_precision(tensor: torch.Tensor, precision: str) -> torch.Tensor:
    """A float tensor in `precision`; any other as it is."""
    return tensor.to(DTYPES[precision]) if tensor.is_floating_point() else tensor


def flatten(batch: Any) -> tuple[list[torch.Tensor], Rest]:
    """The batch's tensors in pytree order (`input.0`, `input.1`, ...) and what is needed to put it together again."""
    leaves, spec = tree_flatten(batch)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)], Rest(leaves, spec)


class Rest:
    """A batch's structure and the leaves that are no tensors; `batch(tensors)` puts a batch together."""

    def __init__(self, leaves: list[Any], spec: TreeSpec) -> None:
        self.leaves = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        self.places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        self.spec = spec

    def batch(self, tensors: list[torch.Tensor]) -> Any:
        """The batch that has these tensors as its leaves."""
        leaves = list(self.leaves)
        for place, tensor in zip(self.places, tensors, strict=True):
            leaves[place] = tensor
        return tree_unflatten(leaves, self.spec)


def split_loss(task: Task, value: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
    """`(loss, weight)` of what Task.loss returned; weight None for a plain mean. Raises TaskError if it is neither."""
    weight = None
    if isinstance(value, tuple) and len(value) == 2:
        value, weight = value
        weight = weight.tensor if isinstance(weight, Number) else weight
        if not isinstance(weight, torch.Tensor):
            if not isinstance(weight, int | float):
                raise TaskError(
                    f"the loss of {task.name!r} returns a pair whose second part is of type {type(weight).__name__}; "
                    "return the scalar loss alone, or (sum of losses, their weight)"
                )
            weight = torch.full((), float(weight))
        if weight.numel() != 1:
            raise TaskError(f"the weight of {task.name!r} has shape {list(weight.shape)}; return two scalars")
    if not isinstance(value, torch.Tensor):
        raise TaskError(
            f"the loss of {task.name!r} is of type {type(value).__name__}; return a scalar tensor or (sum, weight)"
        )
    if value.numel() != 1 or not value.is_floating_point():
        raise TaskError(
            f"the loss of {task.name!r} has shape {list(value.shape)} and dtype {value.dtype}; return one float, "
            f"the mean over the samples"
        )
    if not value.requires_grad:
        raise TaskError(
            f"the loss of {task.name!r} is detached from the parameters; compute it from the model's output"
        )
    return value.reshape(()), weight if weight is None else weight.reshape(())
