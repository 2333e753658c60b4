"""What kernels on a card are made of (Triton): the parts of the numba kernels again, for blocks of numbers.

Numbers are worked on by groups of eight, whose codes of so many bits fill whole bytes: no two programs share one.
Products and sums are not fused (`enable_fp_fusion=False`), or bits would differ from the processor's; for the same
reason quotients are rounded as IEEE wants it, and no factor is computed on the host, where numbers passed become fp32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import gcd
from typing import Any, Final

import torch
import triton
import triton.language as tl
from triton.language import constexpr, tensor

GROUPS: Final = 256  # of eight numbers, for a program
BLOCK: Final = 8 * GROUPS


def kernel(function: Callable[..., Any]) -> Any:
    """A function for a card, compiled for the types that it meets, not for each `key`."""
    return triton.jit(function, do_not_specialize=["key"])


def launch(kernel: Any, programs: int, values: torch.Tensor, *given: Any, **constants: Any) -> None:
    """Start so many programs of a kernel on the card of its first argument, in that one's order of work."""
    with torch.cuda.device(values.get_device()):  # -1 changes nothing
        kernel[(programs,)](values, *given, **constants, enable_fp_fusion=False)


def blocks(count: int) -> int:
    """How many programs so many numbers take."""
    return -(-count // BLOCK)


def signed(key: int) -> int:
    """The 32 bits of a key as a number that a kernel takes."""
    return (key & 0xFFFFFFFF) - ((key & 0x80000000) << 1)


def cells(body: torch.Tensor, width: int) -> torch.Tensor:
    """The bytes of codes as numbers of `width` bits, where these are whole and lie at their multiples."""
    dtype = {16: torch.uint16, 32: torch.uint32}.get(width, torch.uint8)
    whole = body.storage_offset() % dtype.itemsize == 0 and body.numel() % dtype.itemsize == 0
    return body.view(dtype) if whole else body


def fits(message: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether bytes lie at a multiple of the size of numbers of this dtype."""
    return message.storage_offset() % dtype.itemsize == 0 and message.data_ptr() % dtype.itemsize == 0


@contextmanager
def fillable(message: torch.Tensor, dtype: torch.dtype) -> Iterator[torch.Tensor]:
    """Bytes as numbers to be filled: others, copied there at the end, where they lie at no multiple of their size."""
    here = fits(message, dtype)
    numbers = message.view(dtype) if here else message.clone().view(dtype)
    yield numbers
    if not here:
        message.copy_(numbers.view(torch.uint8))


def read_as(message: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Bytes as numbers: a copy of them unless they lie at a multiple of the numbers' size."""
    return (message if fits(message, dtype) else message.clone()).view(dtype)


def alignment(body: torch.Tensor) -> int:
    """Of how many bytes, up to 4, the beginning is a multiple: behind a scale of 4, which Triton does not see."""
    return gcd(body.data_ptr(), 4)


@kernel
def uniform(i: tensor, key: tensor) -> tensor:
    """`compiled.uniform`: a number of [0, 1) for element `i`."""
    x = i.to(tl.uint32) * 0x9E3779B9 + key.to(tl.uint32)
    x = (x ^ (x >> 16)) * 0x21F0AAAD
    x = (x ^ (x >> 15)) * 0x735A2D97
    x = x ^ (x >> 15)
    return (x >> 8).to(tl.float32) * 5.9604644775390625e-08  # 2^-24


@kernel
def quotient(a: tensor, b: tensor) -> tensor:
    """a / b to the nearest; 0 where b is."""
    safe = tl.where(b == 0, b + 1, b)
    found = tl.div_rn(a, safe) if b.dtype == tl.float32 else a / safe
    return tl.where(b == 0, b, found)


@kernel
def power(exponent: tensor) -> tensor:
    """2^exponent in fp64."""
    return ((exponent.to(tl.int64) + 1023) << 52).to(tl.float64, bitcast=True)


@kernel
def scaled(v: tensor, exponent: tensor) -> tensor:
    """v 2^exponent of fp32, in two factors, as one might be no fp32; rounded once, where it has too few bits."""
    within = tl.minimum(tl.maximum(exponent, -252), 252)
    half = within >> 1
    first, second = (half + 127) << 23, (within - half + 127) << 23
    return v * first.to(tl.float32, bitcast=True) * second.to(tl.float32, bitcast=True)


@kernel
def put(
    body: tensor, codes: tensor, group: tensor, inside: tensor, size: tensor, WIDTH: constexpr, ALIGN: constexpr
) -> None:  # fmt: skip
    """`bits.pack`: the lowest bits of the codes of groups, [group, 8] in uint32. Whole numbers go to their places;
    others make words of 32 bits, of which each has its bytes stored."""
    lane = tl.arange(0, 8)[None, :]
    if body.dtype.element_ty.primitive_bitwidth == WIDTH:
        there = tl.multiple_of(body + (group[:, None] * 8 + lane), (1, ALIGN))
        tl.store(there, codes.to(body.dtype.element_ty), inside)
    else:
        BYTES: constexpr = WIDTH if WIDTH < 3 else 4
        kept = tl.where(inside, codes & ((1 << WIDTH) - 1), 0)
        byte = tl.arange(0, BYTES)[None, :]
        for word in tl.static_range((8 * WIDTH + 31) // 32):
            up = WIDTH * lane - 32 * word
            left = kept << tl.minimum(tl.maximum(up, 0), 31).to(tl.uint32)
            right = kept >> tl.minimum(tl.maximum(-up, 0), 31).to(tl.uint32)
            parts = tl.where((up > -32) & (up < 32), tl.where(up < 0, right, left), 0)
            whole = tl.sum(parts, 1)[:, None] >> (8 * byte).to(tl.uint32)
            at = group[:, None].to(tl.int64) * WIDTH + 4 * word + byte
            tl.store(body + at, whole.to(tl.uint8), (4 * word + byte < WIDTH) & (at < size))


@kernel
def get(body: tensor, i: tensor, inside: tensor, size: tensor, WIDTH: constexpr, ALIGN: constexpr) -> tensor:
    """`bits.unpack`: the codes of numbers i in uint32, without sign."""
    if body.dtype.element_ty.primitive_bitwidth == WIDTH:
        return tl.load(tl.multiple_of(body + i, ALIGN), inside, other=0).to(tl.uint32)
    else:
        BYTES: constexpr = 1 if 8 % WIDTH == 0 else (WIDTH + 14) // 8
        first = (i // 8).to(tl.int64) * WIDTH + (i % 8) * WIDTH // 8
        held = tl.load(body + first, inside & (first < size), other=0).to(tl.uint64)
        for byte in tl.static_range(1, BYTES):
            there = inside & (first + byte < size)
            held |= tl.load(body + first + byte, there, other=0).to(tl.uint64) << (8 * byte)
        return (held >> ((i % 8) * WIDTH % 8).to(tl.uint64)).to(tl.uint32) & ((1 << WIDTH) - 1)
