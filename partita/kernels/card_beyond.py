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
def write_blocks(
    values: tensor, bound: tensor, ends: tensor, words: tensor, n: tensor, room: tensor,
    STRICT: constexpr, BACK: constexpr, BLOCK: constexpr,
) -> None:  # fmt: skip
    """The places of those, as many as there is room for; if STRICT with their sign in the highest bit, and with BACK
    the bound is taken off each."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v, edge = tl.load(values + i, i < n, other=0), tl.load(bound)
    found = beyond(v, edge, i < n, STRICT)
    rank = tl.cumsum(found.to(tl.int32), 0)
    at = tl.load(ends + tl.program_id(0)) - tl.sum(found.to(tl.int32), 0) + rank - 1
    word = i
    if STRICT:
        word = tl.where(v < 0, i | -2147483648, i)
    tl.store(words + at, word, found & (at < room))
    if BACK:
        tl.store(values + i, tl.where(v < 0, v + edge, v - edge), found)


def ends_of(values: torch.Tensor, bound: torch.Tensor, strict: bool) -> torch.Tensor:
    """How many of the numbers are beyond the bound up to the end of each block, in int32."""
    counts = torch.empty(blocks(values.numel()), dtype=torch.int32, device=values.device)
    launch(count_blocks, len(counts), values, bound, counts, values.numel(), STRICT=strict, BLOCK=BLOCK)
    return counts.cumsum(0, dtype=torch.int32)


def write_words(
    values: torch.Tensor, bound: torch.Tensor, ends: torch.Tensor, words: torch.Tensor, strict: bool, back: bool
) -> None:
    """Fill `words` with the places of those; of a strict bound they have signs, and with `back` it is taken off."""
    launch(
        write_blocks, len(ends), values, bound, ends, words, values.numel(), len(words),
        STRICT=strict, BACK=back, BLOCK=BLOCK,
    )  # fmt: skip
