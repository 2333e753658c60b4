"""fp64 throughout: explicit casts to a shorter float are promoted, so that equality can be shown to 1e-12."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

SHORT = (torch.float32, torch.float16, torch.bfloat16)


def grouped(a: Tensor, b: Tensor, ends: Tensor) -> Tensor:
    """torch's grouped product of experts, which it has in shorter floats only: rows, columns or what is summed over
    belong to the groups that end at `ends`."""
    spans = list(pairwise([0, *ends.tolist()]))
    if a.dim() == b.dim() == 2:
        return torch.stack([a[:, start:stop] @ b[start:stop] for start, stop in spans])
    parts = zip(spans, a if a.dim() == 3 else b, strict=True)
    if a.dim() == 2:
        made = [a[start:stop] @ expert for (start, stop), expert in parts]
        return torch.cat([*made, a.new_zeros(len(a) - spans[-1][1], b.shape[-1])])
    return torch.cat([expert @ b[:, start:stop] for (start, stop), expert in parts], 1)


class Promoted(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Inside, every dtype that a call names is float64 where it was a shorter float, and so is the default dtype.

    A plain eager run of a model in double precision inside it computes what a graph captured at `fp64` says.
    """

    def __init__(self, shorter: tuple[torch.dtype, ...] = SHORT) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.shorter = shorter
        self.outer: list[torch.dtype] = []

    def __enter__(self) -> Promoted:
        self.outer.append(torch.get_default_dtype())
        torch.set_default_dtype(torch.float64)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        torch.set_default_dtype(self.outer.pop())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._grouped_mm.default and args[0].dtype is torch.float64:
            return grouped(*args[:3])
        return func(*map(self._promote, args), **{key: self._promote(value) for key, value in (kwargs or {}).items()})

    def _promote(self, value: Any) -> Any:
        return torch.float64 if isinstance(value, torch.dtype) and value in self.shorter else value
