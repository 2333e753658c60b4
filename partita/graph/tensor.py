"""Shapes that know the batch: a dimension is a number, or so much a sample plus so much besides."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf, prod
from typing import Final, TypeAlias

ITEMSIZE: Final = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1, "complex64": 8, "complex128": 16,
}  # fmt: skip

DTYPE_OF: Final = {"fp64": "float64", "fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}  # by precision
PRECISION_OF: Final = {dtype: precision for precision, dtype in DTYPE_OF.items()}


@dataclass(frozen=True, slots=True)
class Affine:
    """`each * batch + rest`: a size, stride or literal that follows the number of samples."""

    each: int
    rest: int = 0

    def at(self, batch: int) -> int:
        """The number for `batch` samples."""
        return self.each * batch + self.rest


@dataclass(frozen=True, slots=True)
class Ratio:
    """`scale * (batch + rest) ** power`, a float literal that follows the batch, such as a mean's 1/N (power -1) or a
    variance's 1/(N - 1)."""

    scale: float
    power: int
    rest: float = 0.0

    def at(self, batch: int) -> float:
        """The number for `batch` samples; where it would be one over nothing, infinite."""
        counted = batch + self.rest
        return self.scale * (counted**self.power if counted or self.power > 0 else inf)


Dim: TypeAlias = int | Affine


def dim_at(dim: Dim, batch: int) -> int:
    """The dimension as a number, for `batch` samples."""
    return dim.at(batch) if isinstance(dim, Affine) else dim


@dataclass(frozen=True, slots=True)
class Tensor:
    """Shape, strides (elements) and dtype of a value; `strides` empty means contiguous."""

    shape: tuple[Dim, ...]
    dtype: str
    strides: tuple[Dim, ...] = ()

    def at(self, batch: int) -> Tensor:
        """The same tensor with every dimension a number, for `batch` samples."""
        return replace(self, shape=self.shape_at(batch), strides=self.strides_at(batch))

    def shape_at(self, batch: int = 1) -> tuple[int, ...]:
        """The shape in numbers, for `batch` samples."""
        return tuple(dim_at(d, batch) for d in self.shape)

    def strides_at(self, batch: int = 1) -> tuple[int, ...]:
        """The strides in numbers, for `batch` samples."""
        return tuple(dim_at(d, batch) for d in self.strides)

    def elements(self, batch: int = 1) -> int:
        """How many elements it has for `batch` samples."""
        return prod(self.shape_at(batch))

    def size(self, batch: int = 1) -> int:
        """Bytes of the dense tensor for `batch` samples."""
        return self.elements(batch) * ITEMSIZE[self.dtype]
