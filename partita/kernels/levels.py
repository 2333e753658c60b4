"""Numbers rounded at random to levels of equal distance, so that they are right in the mean: fixed point (QU-02; Gupta
et al. 2015, Courbariaux et al. 2014) and DoReFa's gradients (QU-11; Zhou et al. 2016)."""

from __future__ import annotations

from math import frexp

import numpy as np
import torch

from partita.arrays import Array
from partita.kernels.bits import pack, unpack
from partita.kernels.compiled import array_of, fused, largest, uniform
from partita.wire.codec import Settings

Pair = tuple[float, float]
HEAD = 4  # bytes in front of the codes
BLOCK = 2**12  # numbers
LEAST, MOST = -1000, 1100  # exponents of numbers


def encode_fixed(values: torch.Tensor, message: torch.Tensor, settings: Settings, key: int, back: bool) -> None:
    """An exponent e in int32, then of each number v / 2^e rounded up as often as it is far from the lower one, in
    `bits` bits with sign, saturated. e is the least for which at most the part `overflow` of all is saturated."""
    array, body, bits = array_of(values), array_of(message), int(settings["bits"])
    half = 1 << (bits - 1)
    exponent = scale_exponent(array, half - 1, settings["overflow"])
    body[:HEAD].view(np.int32)[0] = exponent
    _round(array, (2.0**-exponent, 0.0), (-half, half - 1), key, bits, body[HEAD:], (2.0**exponent, 0.0), back)


def decode_fixed(message: torch.Tensor, values: torch.Tensor, settings: Settings, add: bool) -> None:
    """What a message of `encode_fixed` says, code times 2^e of each number, put into `values` or added."""
    body, bits = array_of(message), int(settings["bits"])
    step = 2.0 ** int(body[:HEAD].view(np.int32)[0])
    _place(body[HEAD:], bits, 1 << (bits - 1), step, 0.0, array_of(values), add)


def scale_exponent(array: Array, most: int, overflow: float) -> int:
    """The least e for which at most the part `overflow` of the numbers is beyond +-most 2^e."""
    if not overflow:
        return exponent_of(float(largest(array)) / most)
    counts = np.zeros(MOST - LEAST + 1, np.int64)
    _exponents(array, most, counts)
    beyond = counts[::-1].cumsum()[::-1]  # of exponent e and above
    allowed = np.flatnonzero(beyond[1:] <= overflow * len(array))
    return int(allowed[0]) + LEAST


def exponent_of(number: float) -> int:
    """The least e with number <= 2^e; LEAST for 0."""
    fraction, exponent = frexp(number)
    return exponent - (fraction == 0.5) if number else LEAST


@fused
def _exponents(values: Array, most: int, counts: Array) -> None:
    for i in range(len(values)):
        number = abs(np.float64(values[i])) / most
        exponent = LEAST
        if number > 0:
            exponent = int(np.ceil(np.log2(number)))
            if 2.0**exponent < number:
                exponent += 1
            elif 2.0 ** (exponent - 1) >= number:
                exponent -= 1
        counts[max(exponent - LEAST, 0)] += 1


def encode_dorefa(values: torch.Tensor, message: torch.Tensor, settings: Settings, key: int, back: bool) -> None:
    """m = max |v| in fp32, then round((2^bits - 1) (v / 2m + 1/2 + noise)) of each in `bits` bits, the noise being even
    over one level."""
    array, body, bits = array_of(values), array_of(message), int(settings["bits"])
    levels, scale = (1 << bits) - 1, np.float32(largest(array))
    body[:HEAD].view(np.float32)[0] = scale
    if scale:
        wide = np.float64(scale)
        grid, worth = (levels / (2 * wide), levels / 2), (2 * wide / levels, -wide)
        _round(array, grid, (0, levels), key, bits, body[HEAD:], worth, back)
    else:
        body[HEAD:] = 0


def decode_dorefa(message: torch.Tensor, values: torch.Tensor, settings: Settings, add: bool) -> None:
    """What a message of `encode_dorefa` says, a level of [-m, m] for each number, put into `values` or added."""
    body, bits = array_of(message), int(settings["bits"])
    wide = np.float64(body[:HEAD].view(np.float32)[0])
    _place(body[HEAD:], bits, 0, 2 * wide / ((1 << bits) - 1), -wide, array_of(values), add)


@fused
def _round(
    values: Array, grid: Pair, bounds: tuple[int, int], key: int, bits: int, body: Array, worth: Pair, back: bool
) -> None:
    """floor(v a + b + a number of [0, 1)), within bounds, (a, b) being the `grid`, in `bits` bits each; with `back`
    what each code says, times and plus what it is `worth`, is taken off. A block at a time, whose codes stay in the
    cache."""
    codes = np.empty(min(BLOCK, len(values)), np.int64)
    for start in range(0, len(values), BLOCK):
        block = values[start : start + BLOCK]
        for i in range(len(block)):
            code = np.floor(np.float64(block[i]) * grid[0] + grid[1] + np.float64(uniform(start + i, key)))
            codes[i] = int(min(max(code, bounds[0]), bounds[1]))
        if back:
            for i in range(len(block)):
                block[i] -= block.dtype.type(codes[i] * worth[0] + worth[1])
        pack(codes[: len(block)], bits, body[start * bits // 8 :])


@fused
def _place(body: Array, bits: int, half: int, step: float, shift: float, values: Array, add: bool) -> None:
    """code step + shift of each number, put into `values` or added; codes from `half` on are negative ones (0: none
    is)."""
    codes = np.empty(min(BLOCK, len(values)), np.int64)
    for start in range(0, len(values), BLOCK):
        block = values[start : start + BLOCK]
        unpack(body[start * bits // 8 :], bits, codes[: len(block)])
        for i in range(len(block)):
            code = codes[i] - 2 * (codes[i] & half)
            value = block.dtype.type(code * step + shift)
            block[i] = block[i] + value if add else value
