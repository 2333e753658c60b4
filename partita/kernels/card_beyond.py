"""The numbers beyond a bound, in the order of their places, on a card: counted block by block, then each block writes
its own behind those of the blocks before."""

from __future__ import annotations

import torch
import triton.language as tl
from triton.language import constexpr, tensor

from partita.kernels.card_bits import BLOCK, blocks, kernel, launch


@kernel
def beyond(v: tensor, bound: tensor, inside: tensor, STRICT: constexpr) -> tensor:
    """Which magnitudes are above the bound if STRICT, else not below it."""
    if STRICT:
        return inside & (tl.abs(v) > bound)
    else:
        return inside & ((tl.abs(v) < bound) == 0)


@kernel
def count_blocks(values: tensor, bound: tensor, counts: tensor, n: tensor, STRICT: constexpr, BLOCK: constexpr) -> None:
    """How many of BLOCK numbers are beyond the bound."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    found = beyond(tl.load(values + i, i < n, other=0), tl.load(bound), i < n, STRICT)
    tl.store(counts + tl.program_id(0), tl.sum(found.to(tl.int32), 0))


@kernel
def places_of(found: tensor, ends: tensor) -> tensor:
    """Where what is `found` in this block goes."""
    number = found.to(tl.int32)
    return tl.load(ends + tl.program_id(0)) - tl.sum(number, 0) + tl.cumsum(number, 0) - 1


@kernel
def write_words(
    values: tensor, bound: tensor, ends: tensor, words: tensor, n: tensor, BACK: constexpr, BLOCK: constexpr
) -> None:  # fmt: skip
    """The places of those above the bound with their sign in the highest bit; with BACK the bound is taken off each."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v, edge = tl.load(values + i, i < n, other=0), tl.load(bound)
    found = beyond(v, edge, i < n, True)
    tl.store(words + places_of(found, ends), tl.where(v < 0, i | -2147483648, i), found)
    if BACK:
        tl.store(values + i, tl.where(v < 0, v + edge, v - edge), found)


@kernel
def write_numbers(
    values: tensor, bound: tensor, ends: tensor, numbers: tensor, places: tensor, n: tensor, room: tensor,
    BLOCK: constexpr,
) -> None:  # fmt: skip
    """Those not below the bound and their places, as many as there is room for."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(values + i, i < n, other=0)
    found = beyond(v, tl.load(bound), i < n, False)
    at = places_of(found, ends)
    tl.store(numbers + at, v, found & (at < room))
    tl.store(places + at, i, found & (at < room))


def ends_of(values: torch.Tensor, bound: torch.Tensor, strict: bool) -> torch.Tensor:
    """How many of the numbers are beyond the bound up to the end of each block, in int32."""
    counts = torch.empty(blocks(values.numel()), dtype=torch.int32, device=values.device)
    launch(count_blocks, len(counts), values, bound, counts, values.numel(), STRICT=strict, BLOCK=BLOCK)
    return counts.cumsum(0, dtype=torch.int32)
