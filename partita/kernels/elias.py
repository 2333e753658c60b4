"""QSGD (QU-07; Alistarh et al. 2017): numbers as levels of their group's length, rounded at random, in Elias' gamma
code.

group     |v| s / |v|_2, rounded up as often as it is far from the lower level
stream    gap level sign   gap level sign ... gap     from one that is not 0 to the next, the last to the end
dense     level + 1, sign where it is not 0, for every number
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from partita.arrays import Array
from partita.kernels.bits import gamma
from partita.kernels.compiled import array_of, fused, uniform
from partita.wire.codec import Settings


def encode_qsgd(values: torch.Tensor, message: torch.Tensor, settings: Settings, key: int, back: bool) -> int:
    """The lengths of all groups in fp32, then the stream. Returns the bytes."""
    array, norms, stream = _parts(values, message, settings)
    levels = np.empty(len(array), np.int16)
    _to_levels(array, norms, int(settings["levels"]), int(settings["group"]), key, levels, back)
    write = _write_dense if settings["dense"] else _write_gaps
    return 4 * len(norms) + int(write(levels, int(settings["group"]), stream))


def decode_qsgd(message: torch.Tensor, values: torch.Tensor, settings: Settings, add: bool) -> None:
    """What a message of `encode_qsgd` says, level times norm / levels of each number, put into `values` or added."""
    array, norms, stream = _parts(values, message, settings)
    levels = np.zeros(len(array), np.int16)
    read = _read_dense if settings["dense"] else _read_gaps
    read(stream, int(settings["group"]), levels)
    _from_levels(levels, norms, int(settings["levels"]), int(settings["group"]), array, add)


def _parts(values: torch.Tensor, message: torch.Tensor, settings: Settings) -> tuple[Array, Array, Array]:
    array, body = array_of(values), array_of(message)
    head = 4 * -(-len(array) // int(settings["group"]))
    return array, body[:head].view(np.float32), body[head:]


@fused
def _to_levels(
    values: Array, norms: Array, most: int, group: int, key: int, levels: Array, back: bool
) -> None:  # fmt: skip
    for g in range(len(norms)):
        start, stop, total = g * group, min((g + 1) * group, len(values)), 0.0
        for i in range(start, stop):
            total += np.float64(values[i]) * np.float64(values[i])
        norms[g] = np.sqrt(total)
        norm = np.float64(norms[g])
        factor = most / norm if norm > 0 else 0.0
        for i in range(start, stop):
            level = np.floor(abs(np.float64(values[i])) * factor + np.float64(uniform(i, key)))
            level = min(level, np.float64(most))
            levels[i] = -level if values[i] < 0 else level
            if back:
                values[i] -= values.dtype.type(levels[i] * (norm / most))


@fused
def _from_levels(levels: Array, norms: Array, most: int, group: int, values: Array, add: bool) -> None:
    for i in range(len(values)):
        value = values.dtype.type(levels[i] * (np.float64(norms[i // group]) / most))
        values[i] = values[i] + value if add else value


@fused
def _flush(held: Any, filled: int, stream: Array, at: int) -> Any:
    """Whole bytes of what is held to the stream: (held, filled, at) afterwards."""
    while filled >= 8:
        stream[at] = np.uint8(held & np.uint64(255))
        held >>= np.uint64(8)
        filled -= 8
        at += 1
    return held, filled, at


@fused
def _write_gaps(levels: Array, group: int, stream: Array) -> int:
    held, filled, at = np.uint64(0), 0, 0
    for start in range(0, len(levels), group):
        stop, last = min(start + group, len(levels)), start - 1
        for i in range(start, stop + 1):
            if i < stop and levels[i] == 0:
                continue
            bits, width = gamma(i - last)
            held |= bits << np.uint64(filled)
            held, filled, at = _flush(held, filled + width, stream, at)
            last = i
            if i < stop:
                bits, width = gamma(abs(int(levels[i])))
                bits |= np.uint64(levels[i] < 0) << np.uint64(width)
                held |= bits << np.uint64(filled)
                held, filled, at = _flush(held, filled + width + 1, stream, at)
    if filled:
        stream[at] = np.uint8(held & np.uint64(255))
        at += 1
    return at


@fused
def _write_dense(levels: Array, group: int, stream: Array) -> int:
    held, filled, at = np.uint64(0), 0, 0
    for i in range(len(levels)):
        bits, width = gamma(abs(int(levels[i])) + 1)
        if levels[i] != 0:
            bits |= np.uint64(levels[i] < 0) << np.uint64(width)
            width += 1
        held |= bits << np.uint64(filled)
        held, filled, at = _flush(held, filled + width, stream, at)
    if filled:
        stream[at] = np.uint8(held & np.uint64(255))
        at += 1
    return at


@fused
def _bit(stream: Array, place: int) -> int:
    return (int(stream[place >> 3]) >> (place & 7)) & 1


@fused
def _read(stream: Array, place: int) -> Any:
    """The gamma code at bit `place`: (number, the place after it)."""
    digits = 0
    while not _bit(stream, place):
        digits += 1
        place += 1
    place += 1
    number = 1 << digits
    for k in range(digits):
        number += _bit(stream, place + k) << k
    return number, place + digits


@fused
def _read_gaps(stream: Array, group: int, levels: Array) -> None:
    place = 0
    for start in range(0, len(levels), group):
        stop, i = min(start + group, len(levels)), start - 1
        while True:
            gap, place = _read(stream, place)
            i += gap
            if i >= stop:
                break
            level, place = _read(stream, place)
            levels[i] = -level if _bit(stream, place) else level
            place += 1


@fused
def _read_dense(stream: Array, group: int, levels: Array) -> None:
    place = 0
    for i in range(len(levels)):
        level, place = _read(stream, place)
        levels[i] = level - 1
        if level > 1:
            levels[i] = 1 - level if _bit(stream, place) else level - 1
            place += 1
