"""A few numbers chosen and sent with their places: the largest (SP-02), those beyond a threshold (SP-01)."""

from __future__ import annotations

from functools import lru_cache
from math import sqrt
from typing import Final

import numpy as np
import torch

from partita.arrays import Array
from partita.kernels.compiled import array_of, fused
from partita.wire.codec import Settings, kept

SAMPLE: Final = 16384
GOLDEN: Final = 40503  # of 2**16: steps of so much of a turn come to no place twice, and leave no gap for long
WIDER: Final = 4  # times as many are to be beyond the next bound, where too few were beyond the last


def encode_topk(values: torch.Tensor, message: torch.Tensor, settings: Settings, key: int, back: bool) -> None:
    """The ceil(ratio n) numbers of largest magnitude (of equal ones the first): places in int32, then the numbers. At
    ratio 1 all numbers as they are."""
    array, body, k = array_of(values), array_of(message), kept(values.numel(), settings)
    if k == len(array):
        body[:] = array.view(np.uint8)
        array[:] = 0 if back else array
        return
    places = largest_places(array, k)
    body[: 4 * k] = places.view(np.uint8)
    body[4 * k :] = array[places].view(np.uint8)
    if back:
        array[places] = 0


def decode_topk(message: torch.Tensor, values: torch.Tensor, settings: Settings, add: bool) -> None:
    """What a message of `encode_topk` says: the numbers at their places and 0 elsewhere, put into `values` or added."""
    array, body, k = array_of(values), array_of(message), kept(values.numel(), settings)
    if k == len(array):
        whole = body.view(array.dtype)
        array[:] = array + whole if add else whole
        return
    places, found = body[: 4 * k].view(np.int32), np.empty(k, array.dtype)
    found.view(np.uint8)[:] = body[4 * k :]
    if not add:
        array[:] = 0
    array[places] += found


def places_of_topk(message: torch.Tensor, count: int, settings: Settings) -> torch.Tensor:
    """The places of which a message speaks, among `count` numbers."""
    k = kept(count, settings)
    return torch.arange(count, device=message.device) if k == count else message[: 4 * k].clone().view(torch.int32)


def sampled(n: int, k: int) -> tuple[int, int]:
    """(of how many of n numbers one is looked at, which of these in order the `k` largest hardly fall below)."""
    step = max(n // SAMPLE, 1)
    wanted = k / n * -(-n // step)
    return step, int(wanted + 3 * sqrt(wanted)) + 1


@lru_cache(64)
def spread(n: int, step: int) -> Array:
    """A place in each `step` of n, another one from step to step.

    step 4 in rows of 8     x . . . x . . .          here  x . . . . . x .
                            x . . . x . . .                . x . . . . . x

    At even steps all that is looked at of a matrix is in a few of its columns, and what backward leaves is columns of
    zeros, of units that are off, beside columns that are large."""
    i = np.arange(-(-n // step))
    places: Array = np.minimum(i * step + (i * GOLDEN % 2**16 * step >> 16), n - 1)
    return places


def largest_places(array: Array, k: int) -> Array:
    """Where the `k` largest magnitudes are, in order; of equal ones the first. A bound leaves few to choose from, which
    costs a pass over the numbers."""
    places = candidates(array, k)
    if len(places) < k:
        others = np.flatnonzero(~(np.abs(array) > 0))[: k - len(places)]
        return np.sort(np.concatenate([places, others.astype(np.int32)]))
    magnitude = np.abs(array[places])
    edge = np.partition(magnitude, -k)[-k]
    above = magnitude > edge
    ties = np.flatnonzero(magnitude == edge)[: k - int(above.sum())]
    above[ties] = True
    chosen: Array = places[above]
    return chosen


def candidates(array: Array, k: int) -> Array:
    """The places of all magnitudes that are not below some bound, at least k; of all that are not 0 where these are
    fewer, or no bound parts them.

    The bound comes from a sample. Should it leave too few, one that leaves more is tried; should it leave more than
    there is room for, then the k-th largest of those that found room, since the k-th largest of all is no less."""
    step, rank = sampled(len(array), k)
    sample = np.abs(array[spread(len(array), step)])
    sample = sample[sample > 0]  # selecting among numbers of which most are equal takes as long as sorting them
    room = np.empty(min(len(array), 4 * k + SAMPLE), np.int32)
    bound, found = array.dtype.type(0), 0
    while found < k and rank < len(sample):
        bound = np.partition(sample, -rank)[-rank]
        found, rank = _beyond(array, bound, room), rank * WIDER
    while found > len(room):
        higher = np.partition(np.abs(array[room]), -k)[-k]
        if higher <= bound:
            break
        bound, found = higher, _beyond(array, higher, room)
    if not k <= found <= len(room):
        room = np.empty(len(array), np.int32)
        found = _beyond(array, array.dtype.type(0), room)
    return room[:found]


@fused
def _beyond(values: Array, bound: float, places: Array) -> int:
    """Places of magnitudes of at least `bound`, 0 not among them; how many there are, even where there is no room for
    all."""
    found = 0
    for i in range(len(values)):
        if abs(values[i]) >= bound and values[i] != 0:
            if found < len(places):
                places[found] = i
            found += 1
    return found


def encode_threshold(values: torch.Tensor, message: torch.Tensor, settings: Settings, key: int, back: bool) -> int:
    """Of each |v| > threshold one word: its place, and the sign in the highest bit, meaning +-threshold. The bytes."""
    words = array_of(message)[: message.numel() // 4 * 4].view(np.uint32)
    array = array_of(values)
    return 4 * int(_beyond_signs(array, array.dtype.type(settings["threshold"]), words, back))


def decode_threshold(message: torch.Tensor, values: torch.Tensor, settings: Settings, add: bool) -> None:
    """What a message of `encode_threshold` says: +-threshold at each place and 0 elsewhere, put into `values` or
    added."""
    array = array_of(values)
    if not add:
        array[:] = 0
    words = array_of(message).view(np.uint32)
    places = (words & np.uint32(0x7FFFFFFF)).astype(np.int64)
    array[places] += np.where(words >> np.uint32(31), -settings["threshold"], settings["threshold"]).astype(array.dtype)


def places_of_threshold(message: torch.Tensor, count: int, settings: Settings) -> torch.Tensor:
    """The places in words of four bytes."""
    return message.clone().view(torch.int32) & 0x7FFFFFFF


@fused
def _beyond_signs(values: Array, threshold: float, words: Array, back: bool) -> int:
    found = 0
    for i in range(len(values)):
        value = values[i]
        if abs(value) > threshold:
            words[found] = np.uint32(i) | (np.uint32(value < 0) << np.uint32(31))
            found += 1
            if back:
                values[i] = value + threshold if value < 0 else value - threshold
    return found
