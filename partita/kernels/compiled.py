"""How codec kernels are compiled: one pass over memory each, by numba, kept on disk, while other threads go on.

A kernel works on numpy views of a tensor's memory. Numbers are encoded from where they lie; with `back` what the
message says of each is taken off there, so that the rest stays: the error feedback of all codecs (Seide et al. 2014).
Random numbers come from a counter: that of element i is a hash of i and a key, in any order, on any device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import numba
import numpy as np
import torch

from partita.arrays import Array
from partita.wire.codec import SMALLEST

Function = TypeVar("Function", bound=Callable[..., Any])
KINDS: Final = {
    getattr(torch, name): np.dtype(name).str
    for name in ("float64", "float32", "float16", "uint8", "int8", "int16", "int32", "int64", "bool")
}


def fused(function: Function) -> Function:
    """A kernel, compiled for the types it meets. A type checker at run time leaves it alone."""
    compiled: Any = numba.njit(error_model="numpy", cache=True, nogil=True)(function)
    compiled.__no_type_check__ = True
    result: Function = compiled
    return result


@dataclass(frozen=True, slots=True)
class _Memory:
    """A tensor on the CPU as numpy asks for it. `Tensor.numpy` would have its storage never resized again, and a bucket
    that comes and goes is."""

    tensor: torch.Tensor

    @property
    def __array_interface__(self) -> dict[str, Any]:
        own = self.tensor
        assert own.is_contiguous()
        return {
            "version": 3, "shape": tuple(own.shape), "typestr": KINDS[own.dtype], "data": (own.data_ptr(), False),
        }  # fmt: skip


def array_of(tensor: torch.Tensor) -> Array:
    """The memory of a dense tensor on the CPU."""
    return np.asarray(_Memory(tensor))


@fused
def uniform(i: int, key: int) -> Any:
    """A number of [0, 1) for element `i` (lowbias32, Wellons 2018), of 24 bits."""
    x = np.uint32(np.uint32(i) * np.uint32(0x9E3779B9) + np.uint32(key))
    x = np.uint32((x ^ (x >> np.uint32(16))) * np.uint32(0x21F0AAAD))
    x = np.uint32((x ^ (x >> np.uint32(15))) * np.uint32(0x735A2D97))
    x = x ^ (x >> np.uint32(15))
    return np.float32(x >> np.uint32(8)) * np.float32(2.0**-24)


def largest(values: Array) -> Any:
    """The largest magnitude, read as integers, which are in the same order; what is no number is larger than all."""
    kind: Any = np.int32 if values.itemsize == 4 else np.int64
    return np.array([_largest(values.view(kind), np.iinfo(kind).max)], kind).view(values.dtype)[0]


def scale_of(values: Array) -> np.float32:
    """The largest magnitude in fp32, or 0 where that is below SMALLEST."""
    most = np.float32(largest(values))
    return np.float32(0) if most < SMALLEST else most


@fused
def _largest(bits: Array, mask: int) -> Any:
    found = bits[0] & mask
    for i in range(1, len(bits)):
        found = max(found, bits[i] & mask)
    return found
