"""The rung that always works: the user's module and autograd as one operator each way, split by samples only.

`partita.opaque_forward(parameters, buffers, inputs)` makes the loss, the weight where there is one, the new value of
every buffer that changes, and what autograd keeps, as so many bytes. `partita.opaque_backward(kept, tangent,
parameters, buffers, inputs)` makes the gradients of all weights that are trained, of which a batch may use some only.
A worker carries both out with its own copy of the module (`runtime/whole`). Of the keywords of each, `flops` are a
sample's, and `calls` the operators that torch runs for it, views left out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import psutil
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    is_traceable_wrapper_subclass,
    is_traceable_wrapper_subclass_type,
)
from torch.utils.flop_counter import flop_registry

from partita.errors import CaptureError, PartitaError, first_line
from partita.graph.graph import TANGENT, Buffer, Constant, Graph, Optimizer, Parameter
from partita.graph.operator import Operator, Phase, Ref
from partita.graph.tensor import Affine, Tensor
from partita.task import Task
from partita.tracing.convert import other_names, raw_bytes
from partita.tracing.prepare import (
    DTYPES,
    build_batch,
    build_model,
    check_frozen,
    check_gradient,
    check_unchanged,
    flatten,
    parted_leaves,
    split_loss,
    standing,
    untrained,
)
from partita.tracing.spelling import spelt
from partita.tracing.trace import elements_of
from partita.units import show_bytes

SIZES = (2, 3)
ROWS: Final = (torch.Tensor.crow_indices, torch.Tensor.col_indices, torch.Tensor.values)
COLUMNS: Final = (torch.Tensor.ccol_indices, torch.Tensor.row_indices, torch.Tensor.values)
SPARSE: Final = {  # what a tensor of each sparse layout consists of
    torch.sparse_coo: (torch.Tensor._indices, torch.Tensor._values),
    torch.sparse_csr: ROWS, torch.sparse_bsr: ROWS, torch.sparse_csc: COLUMNS, torch.sparse_bsc: COLUMNS,
}  # fmt: skip
WIDENED: Final = "make it work on a model and a batch in {} too, with dtype=x.dtype wherever it makes a tensor"
FORWARD, BACKWARD = "opaque_forward_0", "opaque_backward_0"


@dataclass
class RealStep:
    """What one real step on SIZES[0] samples showed: whether the loss has a weight, FLOPs and calls of forward and
    backward, the bytes that autograd keeps besides the weights, by their address, and what of the module the step
    `changed` that is not trained."""

    weighted: bool = False
    forward: tuple[float, int] = (0.0, 0)
    backward: tuple[float, int] = (0.0, 0)
    kept: dict[int, int] = field(default_factory=dict)
    changed: dict[str, Tensor] = field(default_factory=dict)


def opaque_graph(task: Task, batch: int, precision: str, optimizer: Optimizer, reason: str) -> Graph:
    """A Graph of two operators; `reason` says why it has no more. Raises CaptureError if the model cannot be built, if
    memory lacks for one real step, or if not even that, on two samples, works."""
    _check_memory(task, precision)
    model = _built(task, precision)
    tried = _step(task, model, precision)
    inputs = tuple((f"input.{i}", t) for i, t in enumerate(_inputs(task, precision)))
    named, buffers = parted_leaves(model, tried.changed)
    gradients = [name for name, p in named.items() if p.requires_grad]
    scalar = Tensor((), spelt(DTYPES[precision]))
    leaves: tuple[Any, ...] = tuple(
        tuple(Ref(name) for name in names) for names in (named, buffers, (name for name, _ in inputs))
    )  # fmt: skip
    first = 2 if tried.weighted else 1
    each = sum(tried.kept.values()) // SIZES[0]
    made = (*(scalar,) * first, *tried.changed.values(), Tensor((Affine(each),), "uint8"))
    forward = Operator(
        FORWARD, "partita.opaque_forward", leaves, _counted(*tried.forward), made, True,
    )  # fmt: skip
    backward = Operator(
        BACKWARD, "partita.opaque_backward", (Ref(FORWARD, len(made) - 1), Ref(TANGENT), *leaves),
        _counted(*tried.backward), tuple(_spec(named[name]) for name in gradients), True, Phase.BACKWARD,
        twin=FORWARD,
    )  # fmt: skip
    aliases = other_names(model)
    saved = model.state_dict(keep_vars=True)
    one = raw_bytes(torch.ones((), dtype=DTYPES[precision]))
    return Graph(
        name=task.name, batch=batch, operators=(forward, backward),
        parameters=tuple(
            Parameter(name, _spec(p), p.requires_grad, aliases[id(p)]) for name, p in named.items()
        ),
        buffers=tuple(Buffer(name, _spec(b), name in saved) for name, b in buffers.items()),
        constants=(Constant(TANGENT, scalar, one),), inputs=inputs,
        loss=Ref(FORWARD, 0), weight=Ref(FORWARD, 1) if tried.weighted else None,
        gradients=tuple((name, Ref(BACKWARD, i)) for i, name in enumerate(gradients)),
        mutations=tuple((name, Ref(FORWARD, first + i)) for i, name in enumerate(tried.changed)),
        optimizer=optimizer, rung="opaque", blind=reason, symbolic=True, global_batch=task.batch_size,
        clip_norm=task.clip_norm or 0.0, samples=len(task.data),
    )  # fmt: skip


class Counts(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A context that counts the operators that torch runs, views left out, and their FLOPs by torch's formulas.

    A tensor that wraps others (a jagged one) does its own operators first, and what is counted is what it calls;
    torch's own counter fails on these."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls, self.flops = 0, 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(map(is_traceable_wrapper_subclass_type, types)):
            return NotImplemented
        formula = flop_registry.get(func.overloadpacket)
        if formula is None:  # in inference mode an operator comes whole that is made of others
            with self:
                made = func.decompose(*args, **(kwargs or {}))
            if made is not NotImplemented:
                return made
        self.calls += not func.is_view
        made = func(*args, **(kwargs or {}))
        self.flops += formula(*args, **(kwargs or {}), out_val=made) if formula else 0.0
        return made


def _counted(flops: float, calls: int) -> tuple[tuple[str, float], ...]:
    """The keywords of an operator that stands for a model's pass over SIZES[0] samples."""
    return ("flops", flops / SIZES[0]), ("calls", calls)


def _check_memory(task: Task, precision: str) -> None:
    """Raises CaptureError where parameters and gradients would not fit into this machine's memory."""
    needed, free = 2 * elements_of(task) * DTYPES[precision].itemsize, psutil.virtual_memory().available
    if needed > free:
        raise CaptureError(
            f"the step of {task.name!r} could not be traced, and to run it once takes {show_bytes(needed)} where "
            f"{show_bytes(free)} are free; capture a smaller model or use a machine with more memory"
        )


def _built(task: Task, precision: str) -> nn.Module:
    """The task's module. Raises CaptureError where it cannot be built."""
    try:
        return build_model(task, precision)
    except PartitaError:
        raise
    except Exception as error:
        raise CaptureError(
            f"the model of {task.name!r} cannot be built ({first_line(error)}); make task.model() work on its own first"
        ) from error


def _step(task: Task, model: nn.Module, precision: str) -> RealStep:
    """Take one real step. Raises CaptureError where the loss does not work."""
    tensors, rest = flatten(build_batch(task, [i % len(task.data) for i in range(SIZES[0])], precision))
    held, found = {p.untyped_storage().data_ptr() for p in model.parameters()}, RealStep()
    trained = {name: standing(p) for name, p in model.named_parameters() if p.requires_grad}
    others = {name: (standing(t), t.detach().clone()) for name, t in untrained(model).items()}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        for storage in _storages(tensor):
            if storage.data_ptr() not in held:
                found.kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    model.zero_grad()
    counts = Counts()
    with counts, saved_tensors_hooks(keep, lambda tensor: tensor):
        try:
            value = task.loss(model, rest.batch(tensors))
        except Exception as error:
            own = precision == task.precision
            alone = "make task.loss(task.model(), batch) work on its own first"
            raise CaptureError(
                f"the loss of {task.name!r} failed{'' if own else ' in ' + precision} on a batch of {SIZES[0]} samples "
                f"({first_line(error)}); {alone if own else WIDENED.format(precision)}"
            ) from error
        found.forward = counts.flops, counts.calls
        loss, weight = split_loss(task, value)
        check_frozen(model, trained)
        check_unchanged(n for n, p in model.named_parameters() if n in trained and standing(p) != trained[n])
        torch.autograd.backward(loss)
    flops, calls = found.forward
    found.backward, found.weighted = (counts.flops - flops, counts.calls - calls), weight is not None
    for name, p in model.named_parameters():
        check_gradient(name, p.grad)
    for name, now in untrained(model).items():
        place, before = others[name]
        if standing(now) != place or not torch.equal(now, before):
            found.changed[name] = _spec(before)
    return found


def _storages(tensor: torch.Tensor) -> list[torch.UntypedStorage]:
    """The memory behind a tensor: that of its parts where it has none of its own (a jagged or a sparse one)."""
    if is_traceable_wrapper_subclass(tensor):
        names, _ = tensor.__tensor_flatten__()
        parts = [getattr(tensor, name) for name in names]
    elif tensor.layout in SPARSE:
        parts = [part(tensor) for part in SPARSE[tensor.layout]]
    else:
        return [tensor.untyped_storage()]
    return [storage for part in parts for storage in _storages(part)]


def _inputs(task: Task, precision: str) -> list[Tensor]:
    """The batch's leaves, following the number of samples as two sizes of batches tell; nothing is checked against
    them, for the module takes what comes."""
    few, more = (_leaves(task, size, precision) for size in SIZES)
    return [
        Tensor(tuple(map(_law, a.shape, b.shape)), a.dtype) if len(a.shape) == len(b.shape) else a
        for a, b in zip(few, more, strict=False)
    ]


def _law(few: Any, more: Any) -> int | Affine:
    """A size that grows with the samples, or that stays."""
    return Affine(more - few, few - SIZES[0] * (more - few)) if SIZES[0] * few >= more > few else max(few, more)


def _leaves(task: Task, size: int, precision: str) -> list[Tensor]:
    tensors, _ = flatten(build_batch(task, [i % len(task.data) for i in range(size)], precision))
    return [_spec(t) for t in tensors]


def _spec(tensor: torch.Tensor) -> Tensor:
    return Tensor(tuple(tensor.shape), spelt(tensor.dtype), () if tensor.is_contiguous() else tensor.stride())
