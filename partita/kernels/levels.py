"""Numbers rounded at random to levels of equal distance, so that they are right in the mean: fixed point (QU-02; Gupta
et al. 2015, Courbariaux et al. 2014) and DoReFa's gradients (QU-11; Zhou et al. 2016)."""

from __future__ import annotations

from collections.abc import Mapping
from math import frexp

import numpy as np
import torch

from partita.kernels.bits import pack, unpack
from partita.kernels.compiled import Array, array_of, fused, largest, uniform

Settings = Mapping[str, float]
HEAD = 4  # bytes in front of the codes
LEAST, MOST = -1000, 1100  # exponents of numbers


def encode_fixed(values: torch.Tensor, message: torch.Tensor, settings: Settings, key: int, back: bool) -> None:
    """An exponent e in int32, then of each number v / 2^e rounded up as often as it is far from the lower one, in
    `bits` bits with sign, saturated. e is the least for which at most the part `overflow` of all is saturated."""
    array, body, half = array_of(values), array_of(message), 1 << (int(settings["bits"]) - 1)
    exponent = scale_exponent(array, half - 1, settings["overflow"])
    body[:HEAD].view(np.int32)[0] = exponent
    codes = np.empty(len(array), np.int64)
    _round(array, 2.0**-exponent, 0.0, -half, half - 1, key, codes)
    if back:
        _take_off(array, codes, 2.0**exponent, 0.0)
    pack(codes, int(settings["bits"]), body[HEAD:])


def decode_fixed(message: torch.Tensor, values: torch.Tensor, settings: Settings, add: bool) -> None:
    """What a message of `encode_fixed` says, code times 2^e of each number, put into `values` or added."""
    body, bits = array_of(message), int(settings["bits"])
    codes = np.empty(values.numel(), np.int64)
    unpack(body[HEAD:], bits, codes)
    codes -= (codes >> (bits - 1)) << bits
    _place(codes, 2.0 ** int(body[:HEAD].view(np.int32)[0]), 0.0, array_of(values), add)


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
    array, body, levels = array_of(values), array_of(message), (1 << int(settings["bits"])) - 1
    scale = np.float32(largest(array))
    body[:HEAD].view(np.float32)[0] = scale
    codes = np.zeros(len(array), np.int64)
    wide = np.float64(scale)
    if scale:
        _round(array, levels / (2 * wide), levels / 2, 0, levels, key, codes)
    if back:
        _take_off(array, codes, 2 * wide / levels, -wide)
    pack(codes, int(settings["bits"]), body[HEAD:])


def decode_dorefa(message: torch.Tensor, values: torch.Tensor, settings: Settings, add: bool) -> None:
    """What a message of `encode_dorefa` says, a level of [-m, m] for each number, put into `values` or added."""
    body, levels = array_of(message), (1 << int(settings["bits"])) - 1
    codes, wide = np.empty(values.numel(), np.int64), np.float64(body[:HEAD].view(np.float32)[0])
    unpack(body[HEAD:], int(settings["bits"]), codes)
    _place(codes, 2 * wide / levels, -wide, array_of(values), add)


@fused
def _round(values: Array, factor: float, shift: float, low: int, high: int, key: int, codes: Array) -> None:
    """floor(v factor + shift + a number of [0, 1)), within bounds."""
    for i in range(len(values)):
        code = np.floor(np.float64(values[i]) * factor + shift + np.float64(uniform(i, key)))
        codes[i] = int(min(max(code, low), high))


@fused
def _take_off(values: Array, codes: Array, step: float, shift: float) -> None:
    for i in range(len(values)):
        values[i] -= values.dtype.type(codes[i] * step + shift)


@fused
def _place(codes: Array, step: float, shift: float, values: Array, add: bool) -> None:
    for i in range(len(values)):
        value = values.dtype.type(codes[i] * step + shift)
        values[i] = values[i] + value if add else value
