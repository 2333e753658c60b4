"""Bits, bytes and random numbers in plain torch operators: what the plain twins of all codecs are made of."""

from __future__ import annotations

import torch

from partita.wire.codec import SMALLEST


def scale_of(v: torch.Tensor) -> torch.Tensor:
    """The largest magnitude in fp32, or 0 where that is below SMALLEST."""
    most = v.abs().max().float().reshape(1)
    return torch.where(most < SMALLEST, 0.0, most)


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of a tensor's bytes, as flat uint8."""
    return tensor.contiguous().view(torch.uint8).clone()


def numbers(message: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The numbers of a dtype that a message of bytes holds."""
    return message.clone().view(dtype)


def packed(codes: torch.Tensor, width: int) -> torch.Tensor:
    """The lowest `width` bits of codes in bytes, the first in the lowest bits."""
    bits = (codes.to(torch.int64)[:, None] >> torch.arange(width)) & 1
    filled = torch.cat([bits.reshape(-1), torch.zeros(-bits.numel() % 8, dtype=torch.int64)]).view(-1, 8)
    return (filled << torch.arange(8)).sum(1).to(torch.uint8)


def bits_of(message: torch.Tensor) -> torch.Tensor:
    """The bits of a message, the lowest of each byte first."""
    return ((message.to(torch.int64)[:, None] >> torch.arange(8)) & 1).reshape(-1)


def unpacked(message: torch.Tensor, width: int, count: int) -> torch.Tensor:
    """The codes of `width` bits in a message, without sign."""
    bits = bits_of(message)[: count * width].view(count, width)
    return (bits << torch.arange(width)).sum(1)


def uniform(count: int, key: int) -> torch.Tensor:
    """The kernels' random numbers of [0, 1), from 64-bit integers."""
    low = 0xFFFFFFFF
    x = (torch.arange(count) * 0x9E3779B9 + key) & low
    for shift, factor in ((16, 0x21F0AAAD), (15, 0x735A2D97)):
        x = ((x ^ (x >> shift)) * factor) & low
    return ((x ^ (x >> 15)) >> 8).float() * 2.0**-24
