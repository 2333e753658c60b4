"""Codecs that choose a few numbers again, in plain torch operators."""

from __future__ import annotations

from math import ceil, inf

import torch

from partita.kernels.chosen import spread
from partita.kernels.plain_bits import bytes_of, numbers
from partita.wire.codec import Settings, kept

SIGN = 0x7FFFFFFF


def topk(v: torch.Tensor, s: Settings, key: int) -> torch.Tensor:
    """The message of flat `v` as `chosen.encode_topk` makes it: k places in int32, then their numbers; at ratio 1 all
    numbers."""
    k = kept(len(v), s)
    if k == len(v):
        return bytes_of(v)
    places = torch.sort(v.abs(), descending=True, stable=True).indices[:k].sort().values
    return torch.cat([bytes_of(places.to(torch.int32)), bytes_of(v[places])])


def from_topk(message: torch.Tensor, like: torch.Tensor, s: Settings) -> torch.Tensor:
    """What a message of `topk` says, in the shape and dtype of `like`."""
    k = kept(like.numel(), s)
    if k == like.numel():
        return numbers(message, like.dtype)
    found = torch.zeros_like(like)
    found[numbers(message[: 4 * k], torch.int32).long()] = numbers(message[4 * k :], like.dtype)
    return found


def words_of(places: torch.Tensor, negative: torch.Tensor) -> torch.Tensor:
    """Words of four bytes: a place, the sign in the highest bit."""
    words = places | (negative.long() << 31)
    return bytes_of(words)[: 8 * len(words)].view(-1, 8)[:, :4].reshape(-1)


def threshold(v: torch.Tensor, s: Settings, key: int) -> torch.Tensor:
    """The message of flat `v` as `chosen.encode_threshold` makes it: a word of place and sign for each |v| above the
    threshold."""
    places = torch.nonzero(v.abs() > s["threshold"]).reshape(-1)
    return words_of(places, v[places] < 0)


def from_threshold(message: torch.Tensor, like: torch.Tensor, s: Settings) -> torch.Tensor:
    """What a message of `threshold` says, in the shape and dtype of `like`."""
    words = numbers(message, torch.int32).long() & 0xFFFFFFFF
    found = torch.zeros_like(like)
    found[words & SIGN] = torch.tensor([s["threshold"], -s["threshold"]], dtype=like.dtype)[words >> 31]
    return found


def adaptive(v: torch.Tensor, s: Settings, key: int) -> torch.Tensor:
    """The message of flat `v` as `adaptive.encode_adaptive` makes it: the means of both signs in fp32, then a word of
    place and sign for each number that is chosen."""
    sample, bounds = v[torch.from_numpy(spread(len(v), max(len(v) // 65536, 1)))], []
    for side in (-sample[sample < 0], sample[sample > 0]):
        k = max(ceil(s["ratio"] * len(side) - 1e-9), 1)
        bounds.append(float(side.sort(descending=True).values[k - 1]) if len(side) else inf)
    low, high = v <= -bounds[0], v >= bounds[1]
    means = [v[side].double().sum() / max(int(side.sum()), 1) for side in (low, high)]
    places = torch.nonzero(low | high).reshape(-1)
    return torch.cat([bytes_of(torch.stack(means).float()), words_of(places, low[places])])


def from_adaptive(message: torch.Tensor, like: torch.Tensor, s: Settings) -> torch.Tensor:
    """What a message of `adaptive` says, in the shape and dtype of `like`."""
    means = numbers(message[:8], torch.float32).to(like.dtype)
    words = numbers(message[8:], torch.int32).long() & 0xFFFFFFFF
    found = torch.zeros_like(like)
    found[words & SIGN] = means[1 - (words >> 31)]
    return found


def adacomp(v: torch.Tensor, s: Settings, key: int, fresh: torch.Tensor | None = None) -> torch.Tensor:
    """The message of flat `v` as `adaptive.encode_adacomp` makes it: the scale in fp32, a count for each bin, then two
    bytes for each number that is sent; `fresh` is what of `v` is new."""
    counts, words, most = [], [], []
    for part, new in zip(
        torch.split(v, int(s["bin"])), torch.split(v if fresh is None else fresh, int(s["bin"])), strict=True
    ):
        most.append(part.abs().max())
        places = torch.nonzero((part != 0) & ((part + new).abs() >= most[-1])).reshape(-1)
        counts.append(len(places))
        words.append(places + 32768 * (part[places] < 0))
    scale = (torch.stack(most).double().sum() / len(most)).float().reshape(1)
    two = torch.cat([torch.tensor(counts), *words])
    return torch.cat([bytes_of(scale), torch.stack([two % 256, two // 256], 1).reshape(-1).to(torch.uint8)])


def from_adacomp(message: torch.Tensor, like: torch.Tensor, s: Settings) -> torch.Tensor:
    """What a message of `adacomp` says, in the shape and dtype of `like`."""
    size, scale = int(s["bin"]), numbers(message[:4], torch.float32).to(like.dtype)
    bins = -(-like.numel() // size)
    two = message[4:].long().view(-1, 2) @ torch.tensor([1, 256])
    found, at = torch.zeros_like(like), bins
    for b in range(bins):
        words = two[at : at + int(two[b])]
        found[b * size + words % 32768] = torch.where(words >= 32768, -scale, scale)
        at += len(words)
    return found
