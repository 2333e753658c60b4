"""`tensor.data = value`, which gives a tensor other memory and tells no dispatcher: a copy into the memory it has."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch.overrides import TorchFunctionMode

from partita.errors import CaptureError

DATA: Final = torch.Tensor.data.__set__  # type: ignore[attr-defined]


class Assigned(TorchFunctionMode):
    """Inside, what is assigned to a tensor's `data` is copied into it. Raises CaptureError for another shape or dtype,
    which a leaf of a graph cannot get."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func != DATA:
            return func(*args, **(kwargs or {}))
        tensor, value = args
        if tensor.shape != value.shape or tensor.dtype != value.dtype:
            raise CaptureError(
                f"`.data = ...` makes a tensor of shape {list(tensor.shape)} and {tensor.dtype} one of shape "
                f"{list(value.shape)} and {value.dtype}; assign values of the same shape and dtype"
            )
        with torch.no_grad():
            tensor.data.copy_(value)
        return None
