"""Weights that several workers change at once, without locks (Niu et al., HOGWILD!, NIPS 2011), also short ones, every
write of which is rounded at random so that it is right in the mean (De Sa et al., NIPS 2015)."""

from __future__ import annotations

from zlib import crc32

import numpy as np
import torch

from partita.arrays import Array
from partita.kernels.compiled import array_of, fused, uniform
from partita.kernels.plain_bits import uniform as uniforms


def key_of(bucket: str, worker: int, turn: int) -> int:
    """What the rounding of a worker's write is drawn from."""
    return crc32(f"{bucket}/{worker}/{turn}".encode())


def add_racing(weights: torch.Tensor, change: torch.Tensor, key: int) -> None:
    """weights += change, element by element where the change is not zero; of what another worker writes to the same
    element in the same moment one may be lost. bfloat16 weights are rounded at random, drawn from `key`."""
    if weights.dtype == torch.bfloat16:
        _add_rounded(array_of(weights.view(torch.int16)).view(np.uint16), array_of(change), key)
    else:
        _add(array_of(weights), array_of(change))


def added_plainly(weights: torch.Tensor, change: torch.Tensor, key: int) -> torch.Tensor:
    """The twin of adding to bfloat16 weights: what they then are, in the dtype of `weights`."""
    bits = (weights + change).float().view(torch.int32).long() & 0xFFFFFFFF
    drawn = (uniforms(len(weights), key).double() * 65536).long()
    words = ((bits + drawn) >> 16 << 16).to(torch.int32)
    return torch.where(change != 0, words.view(torch.float32).to(weights.dtype), weights)


@fused
def _add(weights: Array, change: Array) -> None:
    for i in range(len(change)):
        if change[i] != 0:
            weights[i] += change[i]


@fused
def _add_rounded(words: Array, change: Array, key: int) -> None:
    for i in range(len(change)):
        if change[i] != 0:
            value = np.uint32(np.uint32(words[i]) << np.uint32(16)).view(np.float32) + change[i]
            bits = np.uint64(np.float32(value).view(np.uint32))
            words[i] = np.uint16((bits + np.uint64(uniform(i, key) * np.float32(65536.0))) >> np.uint64(16))
