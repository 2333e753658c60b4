"""Codecs on a card that choose a few numbers, those beyond a bound. The host waits once, at the end, for how many these
are.

    threshold   those beyond the bound are the message's words
    topk, dgc   candidates, those beyond a bound from a sample, of which `card_largest` finds the edge and the places
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import torch
import triton.language as tl
from triton.language import constexpr, tensor

from partita.kernels.card_beyond import ends_of, write_words
from partita.kernels.card_bits import fillable, kernel, launch, read_as
from partita.kernels.card_largest import candidates_of, write_largest
from partita.kernels.chosen import SAMPLE, sampled, spread
from partita.wire.codec import Settings, kept

PLACE: Final = 0x7FFFFFFF
FEW: Final = 512  # places for a program: each is a cell of its own far from the others


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


def encode_topk(values: torch.Tensor, message: torch.Tensor, settings: Settings, key: int, back: bool) -> None:
    """`chosen.encode_topk` on a card: the k places in int32, then their numbers; at ratio 1 all numbers as they are."""
    n, k = values.numel(), kept(values.numel(), settings)
    if k == n:
        message.copy_(values.view(torch.uint8))
        if back:
            values.zero_()
        return
    with fillable(message[: 4 * k], torch.int32) as places, fillable(message[4 * k :], values.dtype) as numbers:
        if not _largest(values, k, places, numbers, back):
            candidates = candidates_of(values, values.new_zeros(1), n)
            write_largest(values, candidates, k, places, numbers, back)


def _largest(values: torch.Tensor, k: int, places: torch.Tensor, numbers: torch.Tensor, back: bool) -> bool:
    """Whether the bound of a sample left as many as are wanted, and no more than there is room for; if so they are
    written."""
    step, rank = sampled(len(values), k)
    sample = values[_spread(len(values), step, values.device)].abs()
    if rank >= len(sample):
        return False
    bound = sample.kthvalue(len(sample) - rank + 1, keepdim=True).values
    candidates = candidates_of(values, bound, min(len(values), 4 * k + SAMPLE))
    write_largest(values, candidates, k, places, numbers, back)
    return k <= int(candidates.found) <= len(candidates.places)


@lru_cache(64)
def _spread(n: int, step: int, device: torch.device) -> torch.Tensor:
    """The places of `spread`, on a card."""
    return torch.from_numpy(spread(n, step)).to(device)


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
    ends = ends_of(values, bound, True)
    with fillable(message[: message.numel() // 4 * 4], torch.int32) as words:
        write_words(values, bound, ends, words, True, back)
    return 4 * int(ends[-1])


def decode_threshold(message: torch.Tensor, values: torch.Tensor, settings: Settings, add: bool) -> None:
    """What a message of `encode_threshold` says, +-threshold at each place, put into `values` or added."""
    added(values, read_as(message, torch.int32), threshold(values, settings), True, add)


CHOSEN: Final = {
    "topk": (encode_topk, decode_topk),
    "dgc": (encode_topk, decode_topk),
    "threshold": (encode_threshold, decode_threshold),
}
