"""Numbers, texts and small collections of them as JSON: the state of optimizers and schedules besides tensors.

0.1  "sum"  None  True          themselves
inf                             {"float": "inf"}
numpy.float64(0.1)              0.1
(0.9, 0.999)                    {"tuple": [0.9, 0.999]}
{30: 1}, Counter({30: 1})       {"dict": [[30, 1]]}, {"counter": [[30, 1]]}
a small tensor                  {"tensor": ["float32", [], [0.1]]}
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import torch

from partita.errors import InputError, TaskError
from partita.tracing.spelling import spelt

LARGEST: Final = 4096


def to_plain(value: Any, what: str) -> Any:
    """The value as JSON. Raises TaskError for one that would need code to read it back; `what` names its owner."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, torch.Tensor) and value.numel() <= LARGEST:
        flat = value.detach().cpu().reshape(-1)
        return {"tensor": [spelt(value.dtype), list(value.shape), to_plain(flat.tolist(), what)]}
    if type(value) is list:
        return [to_plain(item, what) for item in value]
    if isinstance(value, tuple | deque):
        return {"tuple": [to_plain(item, what) for item in value]}
    if isinstance(value, Mapping):
        kind = "counter" if isinstance(value, Counter) else "dict"
        return {kind: [[to_plain(key, what), to_plain(item, what)] for key, item in value.items()]}
    raise TaskError(
        f"{what} keeps a {type(value).__name__}, which a checkpoint cannot hold; it holds tensors, numbers, texts and "
        "collections of these"
    )


def from_plain(value: Any) -> Any:
    """The value that `to_plain` wrote; code is never run. Raises InputError for anything else."""
    if isinstance(value, list):
        return [from_plain(item) for item in value]
    if not isinstance(value, dict):
        return value
    try:
        ((kind, body),) = value.items()
        if kind == "float":
            return float(body)
        if kind == "tuple" and isinstance(body, list):
            return tuple(from_plain(item) for item in body)
        if kind in ("dict", "counter") and isinstance(body, list):
            pairs = {from_plain(key): from_plain(item) for key, item in body}
            return Counter(pairs) if kind == "counter" else pairs
        if kind == "tensor":
            dtype, shape, flat = body
            return torch.tensor(from_plain(flat), dtype=DTYPES[dtype]).reshape(shape)
    except (ValueError, TypeError, KeyError, RuntimeError, OverflowError):
        pass
    raise InputError(f"a checkpoint holds {str(value)[:80]!r}, which is no value; take another checkpoint")


DTYPES: Final = {
    name: getattr(torch, name)
    for name in ("float64", "float32", "bfloat16", "float16", "int64", "int32", "int16", "int8", "uint8", "bool")
}
