"""Eight bits of a dynamic tree (QU-04; Dettmers 2016): a sign, as many zeros as the number has powers of ten below the
largest, a one, and in the bits that are left a linear fraction.

    s 1 ffffff    0.1 to 1         s 0001 fff    0.0001 to 0.001        s 0000000    0
"""

from __future__ import annotations

from typing import Final

import numpy as np
import torch

from partita.arrays import Array
from partita.kernels.compiled import array_of, fused, scale_of
from partita.wire.codec import Settings

CELL: Final = 18  # bits of an fp32 below those that look up where a number's code is near


def magnitudes() -> Array:
    """The 128 numbers from 0 to 1 that a code without sign says."""
    found = [0.0]
    for code in range(1, 128):
        free = code.bit_length() - 1
        found.append(10.0 ** (free - 6) * (0.1 + 0.9 * (code - (1 << free) + 1) / (1 << free)))
    return np.array(found)


BOOK: Final = magnitudes()
EDGES: Final = (BOOK[1:] + BOOK[:-1]) / 2
STARTS: Final = np.minimum(np.arange(1 << (31 - CELL), dtype=np.uint32) << np.uint32(CELL), np.uint32(0x7F800000))
CELLS: Final = np.searchsorted(EDGES, STARTS.view(np.float32).astype(np.float64))


def encode_tree(values: torch.Tensor, message: torch.Tensor, settings: Settings, key: int, back: bool) -> None:
    """m = max |v| in fp32 (0 for one below SMALLEST), then the code of the number nearest to |v| / m, and v's sign, in
    a byte each."""
    array, body = array_of(values), array_of(message)
    scale = scale_of(array)
    body[:4].view(np.float32)[0] = scale
    kind = array.dtype.type
    ratio = kind(1) / kind(scale) if scale else kind(0)
    _to_tree(array, body[4:], ratio, EDGES.astype(kind), CELLS)
    if back:
        _take_off(array, body[4:], BOOK.astype(kind) * kind(scale))


def decode_tree(message: torch.Tensor, values: torch.Tensor, settings: Settings, add: bool) -> None:
    """What a message of `encode_tree` says, the code's number times m, put into `values` or added."""
    body, array = array_of(message), array_of(values)
    kind = array.dtype.type
    _from_tree(body[4:], array, BOOK.astype(kind) * kind(body[:4].view(np.float32)[0]), add)


@fused
def _to_tree(values: Array, codes: Array, ratio: float, edges: Array, cells: Array) -> None:
    for i in range(len(values)):
        number = abs(values[i]) * ratio
        code = cells[np.float32(number).view(np.uint32) >> np.uint32(CELL)]
        while code > 0 and edges[code - 1] >= number:
            code -= 1
        while code < 127 and edges[code] < number:
            code += 1
        codes[i] = code + 128 if values[i] < 0 and code > 0 else code


@fused
def _take_off(values: Array, codes: Array, book: Array) -> None:
    for i in range(len(values)):
        value = book[codes[i] & 127]
        values[i] += value if codes[i] > 127 else -value


@fused
def _from_tree(codes: Array, values: Array, book: Array, add: bool) -> None:
    for i in range(len(values)):
        value = book[codes[i] & 127]
        value = -value if codes[i] > 127 else value
        values[i] = values[i] + value if add else value
