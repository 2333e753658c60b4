"""Numbers rounded to fewer bits: half precision, truncation (QU-01), eight bits (QU-15)."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch

from partita.arrays import Array
from partita.kernels.compiled import array_of, fused, scale_of
from partita.wire.codec import Settings

STRETCH: Final = 2**14  # numbers


def encode_half(values: torch.Tensor, message: torch.Tensor, settings: Settings, key: int, back: bool) -> None:
    """Round to the nearest number of the message's 16-bit dtype."""
    message.copy_(values)
    if back:
        _add(values, message, -1)


def decode_half(message: torch.Tensor, values: torch.Tensor, settings: Settings, add: bool) -> None:
    """The message's 16-bit numbers, put into `values` or added."""
    if add:
        _add(values, message, 1)
    else:
        values.copy_(message)


def _add(values: torch.Tensor, message: torch.Tensor, sign: int) -> None:
    """In place. On processors torch widens a copy of what it adds: a stretch at a time."""
    stretch = STRETCH if values.is_cpu else max(values.numel(), 1)
    for some, said in zip(torch.split(values, stretch), torch.split(message, stretch), strict=True):
        some.add_(said, alpha=sign)


def encode_truncate(values: torch.Tensor, message: torch.Tensor, settings: Settings, key: int, back: bool) -> None:
    """The upper half of each fp32: sign, exponent, seven bits of mantissa."""
    _truncate(array_of(values), array_of(message).view(np.uint16), back)


def decode_truncate(message: torch.Tensor, values: torch.Tensor, settings: Settings, add: bool) -> None:
    """What a message of `encode_truncate` says, the lower 16 bits of each fp32 being 0, put into `values` or added."""
    _widen(array_of(message).view(np.uint16), array_of(values), add)


@fused
def _truncate(values: Array, halves: Array, back: bool) -> None:
    for i in range(len(values)):
        bits = np.float32(values[i]).view(np.uint32) >> np.uint32(16)
        halves[i] = bits
        if back:
            values[i] -= np.uint32(bits << np.uint32(16)).view(np.float32)


@fused
def _widen(halves: Array, values: Array, add: bool) -> None:
    if add:
        for i in range(len(values)):
            values[i] += np.uint32(np.uint32(halves[i]) << np.uint32(16)).view(np.float32)
    else:
        for i in range(len(values)):
            values[i] = np.uint32(np.uint32(halves[i]) << np.uint32(16)).view(np.float32)


def encode_q8(values: torch.Tensor, message: torch.Tensor, settings: Settings, key: int, back: bool) -> None:
    """The scale m = max |v| in fp32 (0 for one below SMALLEST), then round(127 v / m) of each in a byte."""
    array, body = array_of(values), array_of(message)
    scale = scale_of(array)
    body[:4].view(np.float32)[0] = scale
    ratio, step = _steps(scale, array)
    _to_bytes(array, body[4:].view(np.int8), ratio, step, back)


def decode_q8(message: torch.Tensor, values: torch.Tensor, settings: Settings, add: bool) -> None:
    """What a message of `encode_q8` says, code times m / 127, put into `values` or added."""
    body, array = array_of(message), array_of(values)
    _, step = _steps(body[:4].view(np.float32)[0], array)
    _from_bytes(body[4:].view(np.int8), array, step, add)


def _steps(scale: np.float32, array: Array) -> tuple[Any, Any]:
    """(steps a unit, size of a step) in the array's precision; zeros where all numbers are."""
    kind = array.dtype.type
    return (kind(0), kind(0)) if scale == 0 else (kind(127) / kind(scale), kind(scale) / kind(127))


@fused
def _to_bytes(values: Array, codes: Array, ratio: float, step: float, back: bool) -> None:
    for i in range(len(values)):
        code = min(max(np.rint(values[i] * ratio), -127), 127)
        codes[i] = np.int8(code)
        if back:
            values[i] -= values.dtype.type(code * step)


@fused
def _from_bytes(codes: Array, values: Array, step: float, add: bool) -> None:
    if add:
        for i in range(len(values)):
            values[i] += codes[i] * step
    else:
        for i in range(len(values)):
            values[i] = codes[i] * step
