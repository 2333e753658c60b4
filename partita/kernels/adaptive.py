"""A few numbers of each sign chosen, and said as their mean (QU-13; Dryden et al., MLHPC 2016), or bin by bin, as the
mean of the bins' largest (AdaComp, SP-04; Chen et al., AAAI 2018)."""

from __future__ import annotations

from math import ceil, inf
from typing import Any, Final

import numpy as np
import torch

from partita.arrays import Array
from partita.kernels.chosen import places_of_threshold, spread
from partita.kernels.compiled import array_of, fused
from partita.kernels.site import Site
from partita.wire.codec import Settings

SAMPLE: Final = 65536
HEAD: Final = 8
MEAN: Final = 4


def encode_adaptive(values: torch.Tensor, message: torch.Tensor, settings: Settings, key: int, back: bool) -> int:
    """The means of the chosen negative and positive numbers in fp32, then a word each: its place, and the sign in the
    highest bit. Of each sign those are chosen that are beyond a bound, which leaves the part `ratio` of a sample."""
    array, body = array_of(values), array_of(message)
    sample = array[spread(len(array), max(len(array) // SAMPLE, 1))]
    low, high = (bound_of(side, settings["ratio"]) for side in (-sample[sample < 0], sample[sample > 0]))
    words, means = body[HEAD : HEAD + 4 * len(array)].view(np.uint32), np.zeros(2, np.float32)
    count = int(_choose(array, low, high, words, means))
    body[:HEAD] = means.view(np.uint8)
    if back:
        _take_off(array, words[:count], means)
    return HEAD + 4 * count


def bound_of(magnitudes: Array, ratio: float) -> float:
    """What the part `ratio` of them reaches, at least one; more than all where there are none."""
    k = max(ceil(ratio * len(magnitudes) - 1e-9), 1)
    return float(np.partition(magnitudes, -k)[-k]) if len(magnitudes) else inf


def decode_adaptive(message: torch.Tensor, values: torch.Tensor, settings: Settings, add: bool) -> None:
    """What a message of `encode_adaptive` says: the mean of its sign at each place and 0 elsewhere, put into `values`
    or added."""
    array, body = array_of(values), array_of(message)
    if not add:
        array[:] = 0
    means, words = body[:HEAD].view(np.float32).astype(array.dtype), body[HEAD:].view(np.uint32)
    array[words & np.uint32(0x7FFFFFFF)] += np.where(words >> np.uint32(31), means[0], means[1])


def places_of_adaptive(message: torch.Tensor, count: int, settings: Settings) -> torch.Tensor:
    """The places, among `count` numbers, of which a message of `encode_adaptive` speaks."""
    return places_of_threshold(message[HEAD:], count, settings)


@fused
def _choose(values: Array, low: float, high: float, words: Array, means: Array) -> int:
    found, above, up, down = 0, 0, 0.0, 0.0
    for i in range(len(values)):
        value = np.float64(values[i])
        if value >= high:
            words[found] = np.uint32(i)
            up += value
            above += 1
            found += 1
        elif -value >= low:
            words[found] = np.uint32(i) | np.uint32(0x80000000)
            down += value
            found += 1
    means[0] = down / max(found - above, 1)
    means[1] = up / max(above, 1)
    return found


@fused
def _take_off(values: Array, words: Array, means: Array) -> None:
    for k in range(len(words)):
        values[words[k] & np.uint32(0x7FFFFFFF)] -= means[1 - (words[k] >> np.uint32(31))]


def encode_adacomp(
    values: torch.Tensor, message: torch.Tensor, settings: Settings, key: int, back: bool, site: Site
) -> int:
    """s, the mean of all bins' largest |v|, in fp32; of each bin a count, then of each that is sent its place in the
    bin and its sign in the highest bit, in two bytes. Sent is what would reach the bin's largest |v| if what is `fresh`
    in it came once more, and is said as +-s."""
    array, body, size = array_of(values), array_of(message), int(settings["bin"])
    fresh = array if site.fresh is None else array_of(site.fresh)
    bins = -(-len(array) // size)
    counts, words = body[MEAN : MEAN + 2 * bins].view(np.uint16), body[MEAN + 2 * bins :]
    most = np.zeros(bins, array.dtype)
    _largest_of_bins(array, size, most)
    scale = np.float32(most.astype(np.float64).sum() / max(bins, 1))
    body[:MEAN].view(np.float32)[0] = scale
    words = words[: len(words) // 2 * 2].view(np.uint16)
    return MEAN + 2 * bins + 2 * int(_choose_in_bins(array, fresh, size, most, scale, counts, words, back))


def decode_adacomp(message: torch.Tensor, values: torch.Tensor, settings: Settings, add: bool, site: Site) -> None:
    """What a message of `encode_adacomp` says: +-s at each place and 0 elsewhere, put into `values` or added."""
    array, body, size = array_of(values), array_of(message), int(settings["bin"])
    if not add:
        array[:] = 0
    places, words = _places(body, len(array), size)
    scale = body[:MEAN].view(np.float32).astype(array.dtype)[0]
    array[places] += np.where(words >> np.uint16(15), -scale, scale)


def places_of_adacomp(message: torch.Tensor, count: int, settings: Settings) -> torch.Tensor:
    """The places, among `count` numbers, of which a message of `encode_adacomp` speaks."""
    return torch.from_numpy(_places(array_of(message.cpu()), count, int(settings["bin"]))[0])


def _places(body: Array, count: int, size: int) -> tuple[Array, Array]:
    """Places of what was sent, and the words."""
    bins = -(-count // size)
    counts, words = body[MEAN : MEAN + 2 * bins].view(np.uint16), body[MEAN + 2 * bins :].view(np.uint16)
    starts = np.repeat(np.arange(bins) * size, counts)
    return starts + (words & np.uint16(0x7FFF)).astype(np.int64), words


@fused
def _largest_of_bins(values: Array, size: int, most: Array) -> None:
    for b in range(len(most)):
        for i in range(b * size, min((b + 1) * size, len(values))):
            most[b] = max(most[b], abs(values[i]))


@fused
def _choose_in_bins(
    values: Array, fresh: Array, size: int, most: Array, scale: Any, counts: Array, words: Array, back: bool
) -> int:
    found = 0
    for b in range(len(most)):
        before = found
        for i in range(b * size, min((b + 1) * size, len(values))):
            value = values[i]
            if value != 0 and abs(value + fresh[i]) >= most[b]:
                words[found] = np.uint16((i - b * size) | (32768 if value < 0 else 0))
                found += 1
                if back:
                    values[i] = value + scale if value < 0 else value - scale
        counts[b] = found - before
    return found
