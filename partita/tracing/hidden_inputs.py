"""What a model may depend on that a trace does not see: numbers and texts of a batch, its own counters, Python's random
numbers.

A step that depends on any of these is another step for other samples, or the next time. The trace then ends with a
CaptureError that says so, and the model is captured as one operator. Activation checkpoints are traced through, since
what is recomputed is decided by the plan; torch.compile is disabled.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any, Final, NoReturn

import numpy
import torch
import torch.utils.checkpoint
from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from partita.errors import CaptureError
from partita.task import Task
from partita.tracing.kept import kept, own_values, put_back
from partita.tracing.prepare import build_batch, checked_model, flatten

USES: Final = (
    "bool", "eq", "ne", "lt", "le", "gt", "ge", "hash", "len", "iter", "getitem", "index", "int", "float", "contains",
    "add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "floordiv", "rfloordiv", "mod", "rmod", "pow",
    "rpow", "neg", "abs", "str", "format",
)  # fmt: skip
WITHIN: Final = "_checkpoint_without_reentrant_generator"  # what a checkpoint asks; since 2.14 by another name
GENERATORS: Final = (WITHIN, f"{WITHIN}_impl")
THROWS: Final = 8


class Varying:
    """Stands for a value of a batch that is no tensor and differs from sample to sample: using it is an error."""


def _used(*_: Any) -> NoReturn:
    raise CaptureError(
        "the step uses a number or a text of the batch that is no tensor and differs from batch to batch; make it a "
        "tensor to have it traced"
    )


for use in USES:
    setattr(Varying, f"__{use}__", _used)


@contextmanager
def warmed(task: Task) -> Iterator[tuple[nn.Module, Callable[[], Any]]]:
    """A model, and a forward pass that can be made again and again, and was once: on fake tensors, or on real ones if
    the model asks what is in them. In the precision in which the model is built: fake weights cannot always be cast."""
    tensors, rest = flatten(build_batch(task, range(min(2, len(task.data))), task.precision))
    for mode in (FakeTensorMode(allow_non_fake_inputs=True), None):
        with mode or nullcontext(), seen_through():
            model = checked_model(task)
            own = next((p.dtype for p in model.parameters() if p.is_floating_point()), None)
            given = [tensor.to(own) if own and tensor.is_floating_point() else tensor for tensor in tensors]
            batch = rest.batch([mode.from_tensor(tensor) if mode else tensor for tensor in given])
            once = partial(task.loss, model, batch)
            try:
                once()
            except DataDependentOutputException:
                continue
            yield model, once
            return


def check_own_values(task: Task) -> None:
    """Raises CaptureError for what `changing` finds."""
    if counts := changing(task):
        raise CaptureError(counts)


def changing(task: Task, whose: tuple[str, ...] = ("model", "loss")) -> str:
    """A sentence if numbers that the model or the loss keeps change from step to step (and not only at the first step,
    as a cache's do), or if a step reads a tensor of the step before; else ""."""
    counts: tuple[str, str] | None = None
    with ExitStack() as stack:
        stack.enter_context(put_back(task))
        try:
            model, once = stack.enter_context(warmed(task))
            once()
            before = own_values(task, model)
            once()
        except Exception:  # what cannot run so was traced all the same
            return ""
        places = kept(task, model)
        values = own_values(task, model)
        moved = [key for key, value in values.items() if key[0] in whose and before.get(key) != value]
        left = [key for key in moved if isinstance(places[key].value, torch.Tensor)]
        counts = next((key for key in moved if key not in left), None)
        for key in left:
            places[key].put(Varying())
        try:
            once()
        except Exception:  # the step reads what has been taken away, so it is part of it
            counts = counts or next(iter(left), None)
    if not counts:
        return ""
    who, name = counts
    place = "no buffer" if who == "model" else "no buffer of the model"
    return f"the {who} changes {name!r} in every step, which is {place}; keep what the next step depends on in one"


@contextmanager
def seen_through() -> Iterator[None]:
    """A context in which a model runs without torch.compile and without activation checkpoints."""
    place: Any = torch.utils.checkpoint
    through = {"CheckpointFunction": Through} | dict.fromkeys(GENERATORS, _through)
    before = {name: getattr(place, name) for name in through if hasattr(place, name)}
    for name in before:
        setattr(place, name, through[name])
    try:
        with torch.compiler.set_stance("force_eager"):
            yield
    finally:
        for name, own in before.items():
            setattr(place, name, own)


def python_random_state() -> Any:
    """The states of Python's and NumPy's random generators."""
    return random.getstate(), repr(numpy.random.get_state())


def check_python_random(task: Task) -> None:
    """Raises CaptureError if the step depends on Python's or NumPy's random numbers; drawing some is allowed."""
    if follows_python_random(task):
        raise CaptureError(
            "the step follows Python's or NumPy's random numbers, once for all steps if it were traced; draw with "
            "torch, as tensors"
        )


def follows_python_random(task: Task) -> bool:
    """Whether what the step calls, and with which numbers, depends on Python's or NumPy's random numbers."""
    before, steps = (random.getstate(), numpy.random.get_state()), []
    try:
        with warmed(task) as (_, once):
            for seed in range(THROWS):
                random.seed(seed)
                numpy.random.seed(seed)
                with Calls() as calls:
                    once()
                steps.append(calls.made)
    except Exception:  # what cannot run so was traced all the same
        return False
    finally:
        random.setstate(before[0])
        numpy.random.set_state(before[1])
    return any(step != steps[0] for step in steps)


class Calls(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records which operators are called, and with which plain numbers."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.made: list[tuple[str, list[Any]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        plain = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, int | float)]
        self.made.append((str(func), plain))
        return func(*args, **(kwargs or {}))


class Through:
    """Replaces torch's CheckpointFunction: calls the function without checkpointing."""

    @staticmethod
    def apply(function: Callable[..., Any], preserve: bool, *given: Any) -> Any:
        """Call the function."""
        return function(*given)


def _through(*_: Any, **__: Any) -> Iterator[None]:
    yield
