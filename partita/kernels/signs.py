"""Signs, packed: one bit of a number (QU-05), or two (QU-06)."""

from __future__ import annotations

from typing import Final

import numpy as np
import torch

from partita.arrays import Array
from partita.kernels.compiled import array_of, fused, uniform
from partita.wire.codec import Settings

BLOCK: Final = 4096  # numbers, a multiple of four


def encode_onebit(values: torch.Tensor, message: torch.Tensor, settings: Settings, key: int, back: bool) -> None:
    """Bits v >= 0, the first number in the lowest, then of each group the means of its two classes in fp32."""
    bits, means, group = _onebit_parts(message, values, settings)
    _to_bits(array_of(values), bits, means, group, back)
    array_of(message)[len(bits) :] = means.view(np.uint8)


def decode_onebit(message: torch.Tensor, values: torch.Tensor, settings: Settings, add: bool) -> None:
    """What a message of `encode_onebit` says, the mean of each number's class in its group, put into `values` or
    added."""
    bits, means, group = _onebit_parts(message, values, settings)
    means.view(np.uint8)[:] = array_of(message)[len(bits) :]
    _from_bits(bits, means, array_of(values), group, add)


def _onebit_parts(message: torch.Tensor, values: torch.Tensor, settings: Settings) -> tuple[Array, Array, int]:
    group, bytes_ = int(settings["group"]), -(-values.numel() // 8)
    return array_of(message)[:bytes_], np.zeros(2 * -(-values.numel() // group), np.float32), group


@fused
def _to_bits(values: Array, bits: Array, means: Array, group: int, back: bool) -> None:
    n = len(values)
    for j in range(len(bits)):
        byte = np.uint8(0)
        for i in range(8 * j, min(8 * j + 8, n)):
            byte |= np.uint8(values[i] >= 0) << np.uint8(i - 8 * j)
        bits[j] = byte
    for g in range(len(means) // 2):
        low, high, up, down, above = g * group, min((g + 1) * group, n), 0.0, 0.0, 0
        for i in range(low, high):
            value = np.float64(values[i])
            up += max(value, 0.0)
            down += min(value, 0.0)
            above += values[i] >= 0
        means[2 * g] = down / max(high - low - above, 1)
        means[2 * g + 1] = up / max(above, 1)
        if back:
            for i in range(low, high):
                values[i] -= means[2 * g + (values[i] >= 0)]


@fused
def _from_bits(bits: Array, means: Array, values: Array, group: int, add: bool) -> None:
    for g in range(len(means) // 2):
        for i in range(g * group, min((g + 1) * group, len(values))):
            value = means[2 * g + ((bits[i >> 3] >> np.uint8(i & 7)) & np.uint8(1))]
            values[i] = values[i] + value if add else value


def encode_terngrad(values: torch.Tensor, message: torch.Tensor, settings: Settings, key: int, back: bool) -> None:
    """The scale s in fp32, then sign(v) with probability |v| / s and else 0, two bits each: 0, 1 for +s, 2 for -s.

    s is the largest |v| after clipping at `clip` deviations from zero, the mean of gradients (0: none): of equal
    numbers, or of one, those from their own mean would leave nothing to send."""
    body = array_of(message)
    scale = np.float32(_ternary_scale(array_of(values), settings["clip"]))
    body[:4].view(np.float32)[0] = scale
    _to_ternary(array_of(values), body[4:], array_of(values).dtype.type(scale), key, back)


def decode_terngrad(message: torch.Tensor, values: torch.Tensor, settings: Settings, add: bool) -> None:
    """What a message of `encode_terngrad` says, s, -s or 0 for each number, put into `values` or added."""
    body, array = array_of(message), array_of(values)
    _from_ternary(body[4:], array, array.dtype.type(body[:4].view(np.float32)[0]), add)


@fused
def _ternary_scale(values: Array, clip: float) -> float:
    """Sums in eight columns, which a processor adds at once."""
    n, squares, most = len(values), np.zeros(8), 0.0
    for i in range(0, n - n % 8, 8):
        for lane in range(8):
            value = np.float64(values[i + lane])
            squares[lane] += value * value
    for i in range(n - n % 8, n):
        squares[0] += np.float64(values[i]) * values[i]
    for i in range(n):
        most = max(most, abs(values[i]))
    if clip > 0:
        most = min(most, clip * np.sqrt(squares.sum() / n))
    return most


@fused
def _to_ternary(values: Array, body: Array, scale: float, key: int, back: bool) -> None:
    """Codes of a block of numbers first, without a branch, then their packing."""
    n, codes = len(values), np.zeros(BLOCK, np.uint8)
    for start in range(0, n, BLOCK):
        stop = min(start + BLOCK, n)
        for i in range(start, stop):
            sent = uniform(i, key) * scale < abs(values[i])
            codes[i - start] = np.uint8(sent) << np.uint8(values[i] < 0)
        if back:
            for i in range(start, stop):
                code = codes[i - start]
                values[i] -= scale * (np.int8(code == 1) - np.int8(code == 2))
        codes[stop - start :] = 0
        for j in range((stop - start + 3) // 4):
            byte = codes[4 * j] | codes[4 * j + 1] << 2 | codes[4 * j + 2] << 4 | codes[4 * j + 3] << 6
            body[start // 4 + j] = np.uint8(byte)


@fused
def _from_ternary(body: Array, values: Array, scale: float, add: bool) -> None:
    for i in range(len(values)):
        code = (body[i >> 2] >> np.uint8(2 * (i & 3))) & np.uint8(3)
        value = scale * ((code == 1) - np.int8(code == 2))
        values[i] = values[i] + value if add else value
