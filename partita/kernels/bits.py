"""Codes of so many bits each, one after the other in bytes, the first in the lowest bits."""

from __future__ import annotations

from typing import Any

import numpy as np

from partita.arrays import Array
from partita.kernels.compiled import fused


@fused
def pack(codes: Array, width: int, body: Array) -> None:
    """Fill `body` with the lowest `width` bits (at most 32) of each code, eight at once where they fit into a word."""
    held, filled, mask = np.uint64(0), 0, np.uint64((1 << width) - 1)
    eights = len(codes) // 8 if width <= 8 else 0
    for group in range(eights):
        word = np.uint64(0)
        for i in range(8):
            word |= (np.uint64(codes[8 * group + i]) & mask) << np.uint64(i * width)
        for i in range(width):
            body[group * width + i] = np.uint8((word >> np.uint64(8 * i)) & np.uint64(255))
    at = eights * width
    for i in range(8 * eights, len(codes)):
        held |= (np.uint64(codes[i]) & mask) << np.uint64(filled)
        filled += width
        while filled >= 8:
            body[at] = np.uint8(held & np.uint64(255))
            held >>= np.uint64(8)
            filled -= 8
            at += 1
    if filled:
        body[at] = np.uint8(held & np.uint64(255))


@fused
def unpack(body: Array, width: int, codes: Array) -> None:
    """The codes in `body`, without sign."""
    held, filled, mask = np.uint64(0), 0, np.uint64((1 << width) - 1)
    eights = len(codes) // 8 if width <= 8 else 0
    for group in range(eights):
        word = np.uint64(0)
        for i in range(width):
            word |= np.uint64(body[group * width + i]) << np.uint64(8 * i)
        for i in range(8):
            codes[8 * group + i] = (word >> np.uint64(i * width)) & mask
    at = eights * width
    for i in range(8 * eights, len(codes)):
        while filled < width:
            held |= np.uint64(body[at]) << np.uint64(filled)
            filled += 8
            at += 1
        codes[i] = held & mask
        held >>= np.uint64(width)
        filled -= width


@fused
def gamma(number: int) -> Any:
    """Elias' gamma code of a number >= 1 as (bits, how many), the first in the lowest: as many zeros as it has binary
    digits after its first, a one, then these digits, the lowest first (Elias 1975)."""
    digits = 0
    while number >> (digits + 1):
        digits += 1
    rest = number - (1 << digits)
    return np.uint64((1 << digits) | (rest << (digits + 1))), 2 * digits + 1
