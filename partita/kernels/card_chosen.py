"""Codecs on a card that choose a few numbers. Those beyond a bound are counted block by block, then each block writes
its own behind those of the blocks before, so that places stand in order. The host waits once, for how many there are.
"""

from __future__ import annotations

from typing import Final

import torch
import triton.language as tl
from triton.language import constexpr, tensor

from partita.kernels.card_bits import BLOCK, blocks, kernel, launch, read_as
from partita.kernels.chosen import sampled
from partita.wire.codec import Settings, kept

PLACE: Final = 0x7FFFFFFF
FEW: Final = 512  # places for a program: each is a cell of its own far from the others


@kernel
def beyond(v: tensor, bound: tensor, inside: tensor, STRICT: constexpr) -> tensor:
    """Which numbers have a magnitude of at least the bound, or above it if STRICT."""
    if STRICT:
        return inside & (tl.abs(v) > bound)
    else:
        return inside & (tl.abs(v) >= bound)


@kernel
def count_blocks(values: tensor, bound: tensor, counts: tensor, n: tensor, STRICT: constexpr, BLOCK: constexpr) -> None:
    """How many of BLOCK numbers are beyond the bound."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    found = beyond(tl.load(values + i, inside, other=0), tl.load(bound), inside, STRICT)
    tl.store(counts + tl.program_id(0), tl.sum(found.to(tl.int32), 0))


@kernel
def write_blocks(
    values: tensor, bound: tensor, ends: tensor, words: tensor, n: tensor,
    STRICT: constexpr, SIGNS: constexpr, BACK: constexpr, BLOCK: constexpr,
) -> None:  # fmt: skip
    """The places of those, with SIGNS their sign in the highest bit; with BACK the bound is taken off each."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    v, edge = tl.load(values + i, inside, other=0), tl.load(bound)
    found = beyond(v, edge, inside, STRICT)
    rank = tl.cumsum(found.to(tl.int32), 0)
    at = tl.load(ends + tl.program_id(0)) - tl.sum(found.to(tl.int32), 0) + rank - 1
    word = i
    if SIGNS:
        word = tl.where(v < 0, i | -2147483648, i)
    tl.store(words + at, word, found)
    if BACK:
        tl.store(values + i, tl.where(v < 0, v + edge, v - edge), found)


def counted(values: torch.Tensor, bound: torch.Tensor, strict: bool) -> torch.Tensor:
    """How many of the numbers are beyond the bound up to the end of each block."""
    counts = torch.empty(blocks(values.numel()), dtype=torch.int32, device=values.device)
    launch(count_blocks, len(counts), values, bound, counts, values.numel(), STRICT=strict, BLOCK=BLOCK)
    return counts.cumsum(0)


def written(
    values: torch.Tensor, bound: torch.Tensor, ends: torch.Tensor, words: torch.Tensor, strict: bool, back: bool
) -> None:
    """Fill `words`; those of a strict bound have signs."""
    launch(
        write_blocks, len(ends), values, bound, ends, words, values.numel(),
        STRICT=strict, SIGNS=strict, BACK=back, BLOCK=BLOCK,
    )  # fmt: skip


@kernel
def add_blocks(
    values: tensor, words: tensor, said: tensor, k: tensor, PLACE: constexpr, SIGNS: constexpr, BLOCK: constexpr
) -> None:  # fmt: skip
    """BLOCK numbers added at their places, no two of which are the same; with SIGNS all are `said`'s first, + or -."""
    j = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = j < k
    word = tl.load(words + j, inside, other=0)
    at = word & PLACE
    if SIGNS:
        bound = tl.load(said)
        number = tl.where(word < 0, -bound, bound)
    else:
        number = tl.load(said + j, inside, other=0)
    tl.store(values + at, tl.load(values + at, inside, other=0) + number, inside)


def added(values: torch.Tensor, words: torch.Tensor, said: torch.Tensor, signs: bool, add: bool) -> None:
    """What is said of the places, put into `values` or added."""
    if not add:
        values.zero_()
    if len(words):
        launch(add_blocks, -(-len(words) // FEW), values, words, said, len(words), PLACE=PLACE, SIGNS=signs, BLOCK=FEW)


def largest(values: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """`chosen.largest_places`: where the `k` largest magnitudes are, in order, of equal ones the first; the numbers."""
    step, rank = sampled(len(values), k)
    sample, places = values[::step].abs(), None
    if rank < len(sample):
        bound = sample.kthvalue(len(sample) - rank + 1, keepdim=True).values
        ends = counted(values, bound, False)
        if int(ends[-1]) >= k:
            places = torch.empty(int(ends[-1]), dtype=torch.int32, device=values.device)
            written(values, bound, ends, places, False, False)
    if places is None:
        places = torch.arange(len(values), dtype=torch.int32, device=values.device)
    numbers = values[places]
    magnitude = numbers.abs()
    edge = magnitude.sort().values[-k]
    above, ties = magnitude > edge, magnitude == edge
    chosen = (above | (ties & (ties.cumsum(0) <= k - above.sum()))).nonzero()[:, 0]
    return places[chosen], numbers[chosen]


def encode_topk(values: torch.Tensor, message: torch.Tensor, settings: Settings, key: int, back: bool) -> None:
    """`chosen.encode_topk` on a card: the k places in int32, then their numbers; at ratio 1 all numbers as they are."""
    k = kept(values.numel(), settings)
    if k == values.numel():
        message.copy_(values.view(torch.uint8))
        if back:
            values.zero_()
        return
    places, numbers = largest(values, k)
    message[: 4 * k] = places.view(torch.uint8)
    message[4 * k :] = numbers.view(torch.uint8)
    if back:
        values[places] = 0


def decode_topk(message: torch.Tensor, values: torch.Tensor, settings: Settings, add: bool) -> None:
    """What a message of `encode_topk` says, put into `values` or added."""
    k = kept(values.numel(), settings)
    if k == values.numel():
        whole = message.clone().view(values.dtype)
        values.copy_(values + whole if add else whole)
        return
    added(values, read_as(message[: 4 * k], torch.int32), read_as(message[4 * k :], values.dtype), False, add)


def threshold(values: torch.Tensor, settings: Settings) -> torch.Tensor:
    """The codec's, as one of the numbers."""
    return torch.full((1,), settings["threshold"], dtype=values.dtype, device=values.device)


def encode_threshold(values: torch.Tensor, message: torch.Tensor, settings: Settings, key: int, back: bool) -> int:
    """`chosen.encode_threshold` on a card: a word for each |v| above the threshold. Returns the bytes of all words."""
    bound = threshold(values, settings)
    ends = counted(values, bound, True)
    words = torch.empty(int(ends[-1]), dtype=torch.int32, device=values.device)
    written(values, bound, ends, words, True, back)
    message[: words.nbytes] = words.view(torch.uint8)
    return words.nbytes


def decode_threshold(message: torch.Tensor, values: torch.Tensor, settings: Settings, add: bool) -> None:
    """What a message of `encode_threshold` says, +-threshold at each place, put into `values` or added."""
    added(values, read_as(message, torch.int32), threshold(values, settings), True, add)


CHOSEN: Final = {
    "topk": (encode_topk, decode_topk),
    "dgc": (encode_topk, decode_topk),
    "threshold": (encode_threshold, decode_threshold),
}
