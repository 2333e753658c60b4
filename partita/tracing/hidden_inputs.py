"""What a model may depend on that a trace does not see: numbers and texts of a batch (what it keeps itself is looked at
in `successive`).

A step that depends on any of these is another step for other samples. The trace then ends with a CaptureError that says
so, and the model is captured as one operator. Activation checkpoints are traced through, since what is recomputed is
decided by the plan; torch.compile is disabled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NoReturn

import torch
import torch.utils.checkpoint

from partita.errors import CaptureError

USES: Final = (
    "bool", "eq", "ne", "lt", "le", "gt", "ge", "hash", "len", "iter", "getitem", "index", "int", "float", "contains",
    "add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "floordiv", "rfloordiv", "mod", "rmod", "pow",
    "rpow", "neg", "abs", "str", "format", "repr",
)  # fmt: skip
WITHIN: Final = "_checkpoint_without_reentrant_generator"  # what a checkpoint asks; since 2.14 by another name
GENERATORS: Final = (WITHIN, f"{WITHIN}_impl")


class Varying:
    """Stands for a value of a batch that is no tensor and differs from sample to sample: using it is an error. Of what
    `kind` it is, and whether that has an attribute, may be asked, as loops over a batch do that move its tensors."""

    _kind: type = object  # of a copy before it has its own

    def __init__(self, kind: type) -> None:
        self._kind = kind

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return self._kind

    def __getattr__(self, name: str) -> NoReturn:
        if hasattr(self._kind, name):
            _used()
        raise AttributeError(f"{self._kind.__name__!r} object has no attribute {name!r}")


def _used(*_: Any) -> NoReturn:
    raise CaptureError(
        "the step uses a number or a text of the batch that is no tensor and differs from batch to batch; make it a "
        "tensor to have it traced"
    )


for use in USES:
    setattr(Varying, f"__{use}__", _used)


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


@contextmanager
def exporting() -> Iterator[None]:
    """A context in which a model is told that it is being exported, so that it takes its branches that look at no
    data."""
    compiler: Any = torch.compiler
    before = compiler._is_compiling_flag, compiler._is_exporting_flag
    compiler._is_compiling_flag = compiler._is_exporting_flag = True
    try:
        yield
    finally:
        compiler._is_compiling_flag, compiler._is_exporting_flag = before


class Through:
    """Replaces torch's CheckpointFunction: calls the function without checkpointing."""

    @staticmethod
    def apply(function: Callable[..., Any], preserve: bool, *given: Any) -> Any:
        """Call the function."""
        return function(*given)


def _through(*_: Any, **__: Any) -> Iterator[None]:
    yield
