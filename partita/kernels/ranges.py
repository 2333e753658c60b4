"""INCEPTIONN's codec (QU-14; Li et al., MICRO 2018): as many bytes as keep an absolute error, chosen number by number.

tag   00 nothing: |v| <= bound    01 a byte of steps of 2 bound    10 two bytes of steps of 2^-15: |v| < 1    11 v
"""

from __future__ import annotations

import numpy as np
import torch

from partita.arrays import Array
from partita.kernels.compiled import array_of, fused
from partita.wire.codec import Settings


def encode_ranges(values: torch.Tensor, message: torch.Tensor, settings: Settings, key: int, back: bool) -> int:
    """Two bits a number first, the first number's in the lowest, then their bytes in order. Returns the bytes."""
    array, body = array_of(values), array_of(message)
    tags = -(-len(array) // 4)
    return tags + int(_to_ranges(array, array.view(np.uint8), settings["bound"], body[:tags], body[tags:], back))


def decode_ranges(message: torch.Tensor, values: torch.Tensor, settings: Settings, add: bool) -> None:
    """What a message of `encode_ranges` says, put into `values` or added."""
    array, body = array_of(values), array_of(message)
    tags, whole = -(-len(array) // 4), np.empty(1, array.dtype)
    _from_ranges(body[:tags], body[tags:], settings["bound"], whole, whole.view(np.uint8), array, add)


@fused
def _to_ranges(values: Array, raw: Array, bound: float, tags: Array, body: Array, back: bool) -> int:
    at, item, step = 0, values.itemsize, 2 * bound
    tags[:] = 0
    for i in range(len(values)):
        value, tag, said = np.float64(values[i]), 0, 0.0
        code = np.rint(value / step)
        if abs(value) >= 1:
            tag, said = 3, value
            for k in range(item):
                body[at + k] = raw[i * item + k]
            at += item
        elif code != 0 and abs(code) <= 127:
            tag, said = 1, code * step
            body[at] = np.uint8(np.int64(code) & 255)
            at += 1
        elif code != 0:
            wide = np.int64(min(max(np.rint(value * 32768.0), -32767.0), 32767.0))
            tag, said = 2, wide / 32768.0
            body[at], body[at + 1] = np.uint8(wide & 255), np.uint8((wide >> 8) & 255)
            at += 2
        tags[i >> 2] |= np.uint8(tag << (2 * (i & 3)))
        if back:
            values[i] -= values.dtype.type(said)
    return at


@fused
def _from_ranges(
    tags: Array, body: Array, bound: float, whole: Array, raw: Array, values: Array, add: bool
) -> None:  # fmt: skip
    at, step = 0, 2 * bound
    for i in range(len(values)):
        tag, said = (tags[i >> 2] >> np.uint8(2 * (i & 3))) & 3, 0.0
        if tag == 1:
            code = np.int64(body[at])
            said = (code - 256 if code > 127 else code) * step
            at += 1
        elif tag == 2:
            code = np.int64(body[at]) | (np.int64(body[at + 1]) << 8)
            said = (code - 65536 if code > 32767 else code) / 32768.0
            at += 2
        elif tag == 3:
            for k in range(len(raw)):
                raw[k] = body[at + k]
            said = np.float64(whole[0])
            at += len(raw)
        value = values.dtype.type(said)
        values[i] = values[i] + value if add else value
